// Small makers of elements, and the one chart: lines over the loops. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
const MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children) element.append(child);
  return element;
}
function html(tag, attributes = {}, ...children) { return fill(document.createElement(tag), attributes, children); }
function svg(tag, attributes = {}, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }

function picture(width, height, label, ...children) {
  const look = { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, "font-family": FONT };
  return svg("svg", look, ...children);
}

/** Lines over loops 0 … T. Series: {values, colour, dash, width, name}; not-a-number leaves a gap. */
function lineChart({ label, width, height = 190, loops, series, log = false, unit, marks = [], level = null }) {
  const colours = theme(), left = 52, right = 12, top = 10, bottom = 34;
  const values = series.flatMap(line => [...line.values]).filter(v => Number.isFinite(v) && (!log || v > 0));
  let low = log ? Math.min(...values) : 0, high = Math.max(...values);
  if (!values.length) [low, high] = log ? [0.1, 1] : [0, 1];
  if (log) { low /= 1.15; high *= 1.15; } else high = high > 0 ? high * 1.06 : 1;
  const x = t => left + (width - left - right) * (loops ? t / loops : 0);
  const part = v => log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
  const y = v => top + (height - top - bottom) * (1 - part(v));
  const drawn = [svg("rect", { width, height, fill: colours.paper })];
  for (const tick of log ? logTicks(low, high, 4) : linearTicks(low, high, 4)) {
    drawn.push(svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), stroke: colours.line }));
    drawn.push(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end", "font-size": 11, fill: colours.soft }, digits(tick, 3)));
  }
  for (const tick of linearTicks(0, loops, Math.min(8, loops)).filter(Number.isInteger)) {
    drawn.push(svg("text", { x: x(tick), y: height - bottom + 15, "text-anchor": "middle", "font-size": 11, fill: colours.soft }, String(tick)));
  }
  drawn.push(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle", "font-size": 11, fill: colours.soft }, `loops · ${unit}`));
  for (const mark of marks) {
    const look = { x1: x(mark.t), x2: x(mark.t), y1: top, y2: height - bottom, stroke: mark.colour, "stroke-dasharray": mark.dash, "stroke-width": 1.5 };
    drawn.push(svg("line", look, svg("title", {}, mark.name)));
  }
  if (level && level.value > low && level.value < high) {
    const look = { x1: left, x2: width - right, y1: y(level.value), y2: y(level.value), stroke: level.colour, "stroke-dasharray": "6 3", "stroke-width": 1.5, class: "level" };
    drawn.push(svg("line", look, svg("title", {}, level.name)));
  }
  for (const line of series) {
    let path = "", pen = "M";
    line.values.forEach((value, t) => {
      const there = Number.isFinite(value) && (!log || value > 0);
      if (there) path += `${pen}${x(t).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = there ? "L" : "M";
    });
    const look = { d: path, fill: "none", stroke: line.colour, "stroke-width": line.width || 1.8, "stroke-dasharray": line.dash || null, "stroke-linejoin": "round" };
    drawn.push(svg("path", look, svg("title", {}, line.name)));
  }
  return picture(width, height, label, ...drawn);
}

function swatch(colour, dash, width = 2.4) {
  const line = svg("line", { x1: 0, x2: 20, y1: 5, y2: 5, stroke: colour, "stroke-width": width, "stroke-dasharray": dash || null });
  return svg("svg", { width: 20, height: 10, "aria-hidden": "true" }, line);
}

/** A figure: its caption, things to choose in it, what is drawn, and a button that saves the drawing. */
function figure(name, caption, drawing, choices = [], below = []) {
  const save = html("button", { type: "button", class: "save", "data-save": name }, "save SVG");
  save.addEventListener("click", () => saveSvg(new XMLSerializer().serializeToString(drawing), name));
  return html("figure", { "data-figure": name }, html("figcaption", {}, html("h3", {}, caption), ...choices, save), drawing, ...below);
}

function saveSvg(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const link = html("a", { href: address, download: `lens-${name.replace(/[^A-Za-z0-9]+/g, "-")}.svg` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function choice(label, options, chosen, onChange) {
  const select = html("select", { "aria-label": label });
  for (const [value, text] of options) select.append(html("option", { value }, text));
  select.value = String(chosen);
  select.addEventListener("change", () => onChange(select.value));
  return select;
}
