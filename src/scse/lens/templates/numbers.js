// What follows from the arrays: perplexities, exits, quantities. The same rules as `scse eval` and `scse adaptive`.

const RULES = {
  update: { label: "‖h′ − h‖", explain: "the state moves by no more than the threshold (the paper's rule)" },
  relative: { label: "‖h′ − h‖ / ‖h′‖", explain: "the state moves by no more than this share of its size" },
  kl: { label: "KL of successive answers", explain: "the prediction changes by no more than this many nats" },
};

function isScored(run, i) { return run.targets[i] >= 0 && run.known[i] === 1; }

/** What is computed once from a run's arrays and forgotten when more of them arrive. */
function remembered(run, name, compute) {
  if (!run.memory.has(name)) run.memory.set(name, compute());
  return run.memory.get(name);
}

function perplexityCurve(run) {
  return remembered(run, "curve", () => Array.from({ length: run.columns }, (_, depth) => perplexity(run, () => depth) ?? NaN));
}

/** exp of the mean loss, each scored token read after the loops that `depthOf` gives it; null without any. */
function perplexity(run, depthOf) {
  let sum = 0, count = 0;
  for (let i = 0; i < run.rows; i++) {
    if (!isScored(run, i)) continue;
    sum += run.arrays.nll[i * run.columns + depthOf(i)];
    count += 1;
  }
  return count ? Math.exp(sum / count) : null;
}

/** Where each token stops, and where the whole text does: after the first loop whose statistic is at most tau. */
function exits(run, rule, tau) {
  const statistic = run.arrays[rule], tokens = new Int32Array(run.rows).fill(run.loops);
  for (let i = 0; i < run.rows; i++) {
    for (let t = 1; t <= run.loops; t++) {
      if (statistic[i * run.columns + t] <= tau) { tokens[i] = t; break; }
    }
  }
  const scored = [...Array(run.rows).keys()].filter(i => isScored(run, i));
  // A text's last token, which nothing follows, is no part of an evaluation; of a problem every position is.
  const seen = run.answersAsked ? [...Array(run.rows).keys()].filter(i => run.known[i] === 1) : scored;
  const largest = remembered(run, `largest ${rule}`, () => Array.from(
    { length: run.columns }, (_, t) => t && seen.length ? Math.max(...seen.map(i => statistic[i * run.columns + t])) : NaN));
  const first = largest.findIndex(value => value <= tau), whole = first < 0 ? run.loops : first;
  const mean = scored.length ? scored.reduce((sum, i) => sum + tokens[i], 0) / scored.length : null;
  return { tokens, whole, mean, tokenPerplexity: perplexity(run, i => tokens[i]), wholePerplexity: perplexity(run, () => whole) };
}

/** The smallest and largest positive value of a rule's statistic over all runs. */
function reach(runs, rule) {
  let low = Infinity, high = 0;
  for (const run of runs) {
    const [least, most] = remembered(run, `reach ${rule}`, () => {
      const values = run.arrays[rule].filter(value => value > 0 && Number.isFinite(value));
      return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [Infinity, 0];
    });
    low = Math.min(low, least);
    high = Math.max(high, most);
  }
  return high > 0 ? [low, Math.max(high, low * 1.001)] : [1e-3, 1];
}

const QUANTITIES = {
  true: { label: "probability of the true next token", scale: "root", at: (run, i, k) => Math.exp(-run.arrays.nll[k]) },
  final: { label: "probability of the last loop's answer", scale: "root", at: (run, i, k) => run.arrays.final[k] },
  entropy: { label: "entropy of the prediction, nats", scale: "linear", at: (run, i, k) => run.arrays.entropy[k] },
  kl: { label: "KL from the last loop's prediction, nats", scale: "log", at: (run, i, k) => run.arrays.kl_last[k] },
  deviation: {
    label: "‖Δ‖ relative to the anchor ‖h*‖", scale: "log", needs: "anchor",
    at: (run, i, k) => run.anchor ? run.arrays.deviation[k] / run.anchor[i] : NaN,
  },
  moved: { label: "how far the state moved, ‖h′ − h‖", scale: "log", at: (run, i, k) => run.arrays.update[k] },
};

/** What a quantity spans over all runs, so that one colour means one number in all of them. */
function span(runs, quantity) {
  if (quantity.scale === "root") return [0, 1];
  const values = [];
  for (const run of runs) {
    for (let k = 0; k < run.rows * run.columns; k++) {
      const value = quantity.at(run, Math.floor(k / run.columns), k);
      if (Number.isFinite(value) && (quantity.scale !== "log" || value > 0)) values.push(value);
    }
  }
  if (!values.length) return quantity.scale === "log" ? [0.1, 1] : [0, 1];
  const sorted = Float64Array.from(values).sort();
  if (quantity.scale === "linear") return [0, sorted[sorted.length - 1] || 1];
  // The lowest twentieth (the last loops' almost-zeros) would take up most of a logarithmic scale.
  const low = sorted[Math.floor(sorted.length / 20)], high = sorted[sorted.length - 1];
  return [low, Math.max(high, low * 1.01)];
}

function position(quantity, [low, high], value) {
  if (!Number.isFinite(value)) return NaN;
  const x = quantity.scale === "root" ? Math.sqrt(value)
    : quantity.scale === "linear" ? (value - low) / (high - low)
    : Math.log(value / low) / Math.log(high / low);
  return Math.min(1, Math.max(0, x));
}

function digits(value, count = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(count - 1);
  return Number(value.toPrecision(count)).toLocaleString("en", { maximumSignificantDigits: count });
}

/** A token as it can be seen: blanks get signs of their own. */
function visible(word) {
  if (word === undefined) return "…";
  const signs = { "\n": "↵", "\t": "⇥", "\r": "␍", " ": "·" };
  const sign = c => signs[c] || `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return word.replace(/[\u0000-\u0020\u007f-\u00a0\u2028\u2029]/g, sign) || "∅";
}
function wordOf(run, id) { return id >= 0 ? visible(run.words.get(id)) : "—"; }
