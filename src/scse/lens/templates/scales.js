// Colours that readers with any colour vision can order: from dark blue over green to yellow, lightness rising evenly.

const STOPS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37]];
const LINES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#0072b2", "#e69f00", "#009e73"];
const DASHES = ["", "", "", "", "", "", "", "5 3", "5 3", "5 3"];

function ramp(x) {
  const place = x * (STOPS.length - 1), low = Math.min(STOPS.length - 2, Math.floor(place)), part = place - low;
  return STOPS[low].map((value, channel) => Math.round(value + part * (STOPS[low + 1][channel] - value)));
}
const RAMP = Array.from({ length: 256 }, (_, k) => {
  const [r, g, b] = ramp(k / 255);
  return { fill: `rgb(${r},${g},${b})`, text: 0.299 * r + 0.587 * g + 0.114 * b > 120 ? "#101418" : "#ffffff" };
});
function colour(x) { return Number.isNaN(x) ? null : RAMP[Math.round(x * 255)]; }

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = name => style.getPropertyValue(name).trim();
  return { paper: read("--card"), ink: read("--ink"), soft: read("--soft"), line: read("--line"), tint: read("--tint"), accent: read("--accent"), link: read("--link") };
}

function linearTicks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high, wanted) {
  if (high < 4 * low) return linearTicks(low, high, wanted);
  const decades = Math.log10(high / low);
  const factors = decades > wanted ? [1] : decades > wanted / 3 ? [1, 3] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / wanted));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length ? ticks : [low, high];
}

function ticksOf(quantity, [low, high]) {
  if (quantity.scale === "root") return [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1];
  return quantity.scale === "linear" ? linearTicks(low, high, 6) : logTicks(low, high, 5);
}
