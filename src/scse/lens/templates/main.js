// The view: its state, which the address keeps, and who draws what when it changes.

const ADDRESS_AFTER = 120; // milliseconds after the last move of the threshold

class View {
  constructor() {
    this.runs = [];
    this.busy = false;
    this.hovered = null;
    this.state = { q: "true", T: 8, rule: "update", tau: null, i: -1, cells: "words", head: -1, application: 0 };
    this.pending = null;
    this.colours = theme();
    this.find = id => document.getElementById(id);
    this.connect();
  }

  /** The controls, once. */
  connect() {
    const { find } = this;
    for (const [name, rule] of Object.entries(RULES)) find("rule").append(html("option", { value: name }, rule.label));
    for (const [name, quantity] of Object.entries(QUANTITIES)) find("quantity").append(html("option", { value: name }, quantity.label));
    find("quantity").addEventListener("change", event => this.set({ q: event.target.value }));
    find("cells").addEventListener("change", event => this.set({ cells: event.target.value }, "layout"));
    find("rule").addEventListener("change", event => this.set({ rule: event.target.value, tau: null }));
    find("depth").addEventListener("input", event => this.set({ T: Number(event.target.value) }));
    find("threshold").addEventListener("input", event => this.set({ tau: this.tauAt(Number(event.target.value)) }, "exits"));
    find("threshold-value").addEventListener("change", event => {
      const tau = Number(event.target.value.trim().replace(",", "."));
      this.set(Number.isFinite(tau) && tau >= 0 && event.target.value.trim() ? { tau } : {}, "exits");
    });
    addEventListener("hashchange", () => { this.readAddress(); this.drawNow("all"); this.showChosen(); });
    addEventListener("resize", () => this.refresh("layout"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh("all"));
  }

  /** Show these runs from now on. */
  open(runs) {
    this.runs = runs;
    document.body.classList.remove("empty");
    const main = this.find("runs");
    main.style.setProperty("--runs", runs.length);
    main.classList.toggle("one", runs.length === 1);
    this.grids = runs.map((run, place) => new Grid(run, place, this));
    this.panels = runs.map((run, place) => new TokenPanel(run, place, this));
    this.facts = runs.map(() => html("div", { class: "facts" }));
    this.curves = runs.map(() => html("div"));
    main.replaceChildren(...runs.map((run, place) => this.section(run, place)));
    this.find("depth").max = Math.max(...runs.map(run => run.loops));
    this.describe();
    this.readAddress();
    this.drawNow("all");
    this.showChosen();
  }

  section(run, place) {
    const save = html("button", { type: "button", class: "save", "data-save": `grid-${place}` }, "save grid as SVG");
    save.addEventListener("click", () => saveSvg(this.grids[place].svgText(), `grid-${run.label}`));
    const title = html("div", { class: "title" }, html("h2", {}, run.label), html("span", { class: "equation" }, `${run.family}   ${run.equation}`));
    const parts = [title, this.facts[place], this.grids[place].element, html("div", { class: "tools" }, save), this.curves[place], this.panels[place].element];
    return html("section", { class: "run", "data-run": place, "aria-label": run.label }, ...parts);
  }

  /** What is said once about the text and about how to read the page. */
  describe() {
    const [first] = this.runs, cut = first.total > first.rows ? `the first ${first.rows} of ${first.total} tokens` : `${first.rows} tokens`;
    this.find("about").textContent = `${cut} · ${first.loops} loops · every cell is the likeliest next token after that many loops`;
    const missing = this.runs.filter(run => !run.anchor);
    const option = this.find("quantity").querySelector("option[value=deviation]");
    option.disabled = missing.length === this.runs.length;
    option.textContent = QUANTITIES.deviation.label + (option.disabled ? " (no anchor)" : "");
    option.title = option.disabled ? missing[0].noAnchor : "";
    const lines = [
      "Rows are the tokens of the text, columns the loops: column 0 is the state before the first loop. A bold word is the true next token. A bar at a cell's left edge marks an answer that differs from that of the loop before.",
      "The solid staircase is where each token would stop under the threshold, at the latest after the last loop; the dashed line is where the whole text would stop, after the first loop in which every token with a true next one is at or below the threshold.",
      "The whole text's loops and perplexity are those of scse adaptive (offline and online) with this threshold and this many loops as the ceiling; perplexity at T is that of scse eval. The tokens' mean and perplexity are read off this full trace. A token that really stops also changes what later tokens see: scse adaptive --mode token measures that.",
      "Keys: with the grid in focus, the arrows move the chosen cell, Page Up and Page Down by ten tokens, Home and End to the first and last loop; Escape closes the token. The address holds the view: copy it to share what you see.",
      "Colours run from dark (low) to bright (high) with even lightness, and mean the same in every run. Grey: there is no such number.",
      "Precision: the loss and the exit statistics are exact (32-bit); other curves and the ten answers' probabilities are rounded to 1 part in 4,096" + this.precision() + ".",
    ];
    for (const run of missing) lines.push(`${run.label}: ${run.noAnchor}.`);
    if (this.runs.some(run => run.truth)) lines.push("A dot in a cell's corner: an answer is expected there; filled where the loop found it, a ring where it did not.");
    this.find("reading").replaceChildren(...lines.map(line => html("li", {}, line)));
  }

  precision() {
    const known = this.runs.filter(run => run.packedAttention);
    const levels = known.map(run => `${run.packedAttention.levels}`).join(" and ");
    return known.length ? `; the square root of an attention weight to 1 part in ${levels}` : "";
  }

  // ---- the state and the address

  readAddress() {
    const kept = new URLSearchParams(location.hash.slice(1)), { state } = this;
    const number = (name, low, high, otherwise) => {
      const value = kept.has(name) ? Number(kept.get(name)) : NaN;
      return Number.isFinite(value) && value >= low && value <= high ? value : otherwise;
    };
    const known = (name, table, otherwise) => kept.get(name) in table ? kept.get(name) : otherwise;
    const most = Math.max(0, ...this.runs.map(run => run.loops)), rows = Math.max(0, ...this.runs.map(run => run.rows));
    state.q = known("q", QUANTITIES, "true");
    if (state.q === "deviation" && this.runs.every(run => !run.anchor)) state.q = "true";
    state.rule = known("rule", RULES, "update");
    state.cells = kept.get("cells") === "narrow" ? "narrow" : "words";
    state.T = Math.round(number("T", 0, most, Math.min(8, most)));
    state.tau = number("tau", 0, Infinity, null);
    state.i = Math.round(number("token", 1, rows, 0)) - 1;
    state.head = Math.round(number("head", 1, 1e4, 0)) - 1;
    state.application = Math.round(number("application", 1, 1e4, 1)) - 1;
  }

  writeAddress() {
    const { state } = this, kept = new URLSearchParams({ q: state.q, T: state.T, rule: state.rule });
    if (state.tau !== null) kept.set("tau", state.tau);
    if (state.i >= 0) kept.set("token", state.i + 1);
    if (state.head >= 0) kept.set("head", state.head + 1);
    if (state.application > 0) kept.set("application", state.application + 1);
    if (state.cells !== "words") kept.set("cells", state.cells);
    try { history.replaceState(null, "", `#${kept}`); } catch { /* a frame without an address of its own */ }
  }

  set(changes, what = "all") {
    Object.assign(this.state, changes);
    this.refresh(what);
  }

  choose({ i, t }) {
    this.set({ i, T: t });
    const run = this.runs[0], word = wordOf(run, run.arrays.answer[i * run.columns + t]);
    this.find("said").textContent = `token ${i + 1} ${wordOf(run, run.ids[i])}, loop ${t}: ${word}`;
  }
  close() { this.set({ i: -1 }); }
  show(cell) { for (const grid of this.grids) grid.show(cell); }
  /** A link may name a cell that is out of sight. */
  showChosen() { if (this.state.i >= 0) this.show({ i: this.state.i, t: this.state.T }); }

  scrolled(from) {
    for (const grid of this.grids) {
      if (grid === from) continue;
      grid.element.scrollLeft = from.element.scrollLeft;
      grid.element.scrollTop = from.element.scrollTop;
    }
    this.refresh("cells");
  }

  hover(cell, grid, event) {
    this.hovered = cell;
    this.refresh("cells");
    const tip = this.find("tip");
    tip.hidden = !cell;
    if (!cell) return;
    tip.replaceChildren(...this.runs.map(run => this.tipFor(run, cell)));
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(innerWidth - box.width - 8, event.clientX + 16))}px`;
    tip.style.top = `${event.clientY + 20 + box.height > innerHeight ? Math.max(4, event.clientY - box.height - 12) : event.clientY + 20}px`;
  }

  tipFor(run, { i, t }) {
    const k = i * run.columns + t, rows = [];
    if (this.runs.length > 1) rows.push([run.label, ""]);
    rows.push([`token ${i + 1}`, wordOf(run, run.ids[i])], [`answer at ${t}`, wordOf(run, run.arrays.answer[k])], [run.truth ? "answer" : "true next", wordOf(run, run.targets[i])]);
    const truth = run.truth && run.truth[i] ? run.truth[i][t] : null;
    if (truth !== null && truth !== undefined) rows.push(["expected", wordOf(run, truth)]);
    const names = { true: "p(true next)", final: "p(last answer)", entropy: "entropy", kl: "KL from last", deviation: "‖Δ‖ / ‖h*‖", moved: "moved" };
    for (const [name, label] of Object.entries(names)) rows.push([label, digits(QUANTITIES[name].at(run, i, k), 3)]);
    return html("table", {}, ...rows.map(([a, b]) => html("tr", {}, html("td", {}, a), html("td", {}, b))));
  }

  // ---- the threshold

  get tau() {
    if (this.state.tau !== null) return this.state.tau;
    const [low, high] = this.reach;
    return Number(Math.sqrt(low * high).toPrecision(3));
  }
  tauAt(value) {
    const [low, high] = this.reach;
    return Number((low * (high / low) ** (value / 1000)).toPrecision(4));
  }
  placeOf(tau) {
    const [low, high] = this.reach;
    return Math.round(1000 * Math.min(1, Math.max(0, Math.log(Math.max(tau, 1e-300) / low) / Math.log(high / low))));
  }

  // ---- drawing: all of it, after a change of layout, only what depends on the threshold, or only the cells

  refresh(what) {
    const order = ["cells", "exits", "layout", "all"];
    const wanted = this.pending === null ? what : order[Math.max(order.indexOf(what), order.indexOf(this.pending))];
    if (this.pending === null) requestAnimationFrame(() => this.drawNow(this.pending));
    this.pending = wanted;
  }

  drawNow(what) {
    this.pending = null;
    if (!this.runs.length) return;
    const begin = performance.now(), { state } = this, whole = what === "all" || what === "layout";
    if (what !== "cells") {
      this.colours = theme();
      this.reach = reach(this.runs, state.rule);
      this.exits = this.runs.map(run => exits(run, state.rule, this.tau));
    }
    if (whole) {
      this.range = span(this.runs, QUANTITIES[state.q]);
      this.room = this.curves.map(place => place.clientWidth || 600);
      this.drawScale();
      for (const panel of this.panels) panel.draw();
      for (const grid of this.grids) grid.layout();
    }
    // The grids ask where they are scrolled to. While nothing else has changed, that costs nothing.
    for (const grid of this.grids) grid.draw();
    if (what === "exits") for (const panel of this.panels) panel.drawNorms();
    if (what !== "cells") {
      this.drawControls();
      this.drawFacts();
      clearTimeout(this.writing);
      if (whole) this.writeAddress(); else this.writing = setTimeout(() => this.writeAddress(), ADDRESS_AFTER);
    }
    this.lastDrawing = { what, milliseconds: performance.now() - begin };
  }

  drawControls() {
    const { find, state } = this;
    find("quantity").value = state.q;
    find("quantity").title = QUANTITIES[state.q].label;
    find("rule").value = state.rule;
    find("rule").title = RULES[state.rule].explain;
    find("cells").value = state.cells;
    find("depth").value = state.T;
    find("depth-value").textContent = state.T;
    find("threshold").value = this.placeOf(this.tau);
    if (document.activeElement !== find("threshold-value")) find("threshold-value").value = String(this.tau);
  }

  drawFacts() {
    const { state } = this;
    this.runs.forEach((run, place) => {
      const t = Math.min(state.T, run.loops), found = this.exits[place];
      const fact = (kind, value, text) => html("div", { class: `fact ${kind}`, "data-fact": kind }, html("b", {}, value), html("span", {}, text));
      const mean = found.mean === null ? "—" : found.mean.toFixed(2);
      this.facts[place].replaceChildren(
        fact("fixed", digits(perplexityCurve(run)[t], 5), `perplexity at T = ${t}`),
        fact("tokens", `${mean} → ${digits(found.tokenPerplexity, 5)}`, "each token stops by itself: mean loops → perplexity"),
        fact("whole", `${found.mean === null ? "—" : found.whole} → ${digits(found.wholePerplexity, 5)}`, "the whole text stops: loops → perplexity"),
      );
      const values = perplexityCurve(run).map((value, depth) => depth ? value : NaN); // nothing is evaluated before a loop
      const marks = [
        { t, colour: this.colours.ink, dash: "2 3", name: `T = ${t}` },
        { t: found.whole, colour: this.colours.accent, dash: "7 4", name: "the whole text stops here" },
      ];
      const width = Math.max(280, Math.min(900, this.room[place] - 24));
      const series = [{ name: "perplexity", values, colour: LINES[0], width: 2.2 }];
      const chart = lineChart({ label: "perplexity over the loops", width, height: 150, loops: run.loops, series, log: true, unit: "perplexity of this text, logarithmic", marks });
      this.curves[place].replaceChildren(figure(`perplexity-${run.label}`, "Perplexity at every T", chart));
    });
  }

  drawScale() {
    const quantity = QUANTITIES[this.state.q], width = Math.max(200, Math.min(420, innerWidth - 30)), height = 34, drawn = [];
    for (let k = 0; k < 60; k++) {
      drawn.push(svg("rect", { x: 10 + k * (width - 20) / 60, y: 0, width: (width - 20) / 60 + 0.6, height: 13, fill: colour(k / 59).fill }));
    }
    let last = -Infinity;
    for (const tick of ticksOf(quantity, this.range)) {
      const x = 10 + position(quantity, this.range, tick) * (width - 20);
      if (x - last < 34) continue;
      last = x;
      drawn.push(svg("line", { x1: x, x2: x, y1: 13, y2: 17, stroke: this.colours.soft }));
      drawn.push(svg("text", { x, y: 29, "text-anchor": "middle", "font-size": 11, fill: this.colours.soft }, digits(tick, 3)));
    }
    const mark = (dash, text) => html("span", { class: "mark" }, swatch(STOP, dash, 3), text);
    const flip = html("span", { class: "mark" }, html("b", {}, "▎"), "the answer flips");
    const bold = html("span", { class: "mark" }, html("b", {}, "bold"), "the true next token");
    this.find("scale").replaceChildren(picture(width, height, `colour scale: ${quantity.label}`, ...drawn), mark("", "each token stops"), mark("7 4", "the whole text stops"), flip, bold);
  }
}

async function start() {
  const view = new View(), data = JSON.parse(document.getElementById("lens-data").textContent);
  window.lens = view;
  if (data.live) { connectLive(view, data.live); return; }
  const runs = [];
  for (const packed of data.runs) {
    const run = await beginRun(packed);
    for (const part of packed.parts) await addPart(run, part);
    run.packedAttention = packed.attention;
    runs.push(run);
  }
  view.open(runs);
  document.documentElement.dataset.ready = "yes";
}
start();
