// What a chosen token did over the loops: its ten likeliest answers, where it looked, how its state moved.

class TokenPanel {
  constructor(run, place, view) {
    this.run = run;
    this.place = place;
    this.view = view;
    this.element = html("section", { class: "token", "aria-label": `the chosen token in ${run.label}` });
  }

  draw() {
    const { run } = this, { i } = this.view.state;
    if (i < 0 || i >= run.rows) {
      const hint = "Choose a cell: its ten likeliest answers over the loops, where it looks, and how far its state moves appear here.";
      this.element.replaceChildren(html("p", { class: "hint" }, hint));
      return;
    }
    const title = html("h2", { class: "chosen" }, `Token ${i + 1}: ${wordOf(run, run.ids[i])}`);
    const next = html("p", { class: "hint" }, run.targets[i] >= 0 ? `${run.truth ? "the answer is" : "followed by"} ${wordOf(run, run.targets[i])}` : run.truth ? "nothing is asked here" : "the text ends here");
    this.width = Math.max(280, Math.min(700, (this.element.clientWidth || 460) - 24));
    this.attentionPlace = html("div");
    this.normsPlace = html("div");
    const path = run.truth && run.truth[i] && run.truth[i].length ? [this.path(i)] : [];
    this.element.replaceChildren(html("div", {}, title, next), ...path, this.topTen(i), this.attentionPlace, this.normsPlace);
    this.drawNorms();
    this.drawAttention();
  }

  marks() {
    const { state, exits, colours } = this.view;
    return [
      { t: Math.min(state.T, this.run.loops), colour: colours.ink, dash: "2 3", name: `T = ${state.T}` },
      { t: exits[this.place].tokens[state.i], colour: colours.accent, dash: "", name: "this token stops here" },
    ];
  }

  topTen(i) {
    const { run, view } = this, t = Math.min(view.state.T, run.loops);
    const lines = [];
    for (let c = 0; c < run.kept && run.known[i]; c++) {
      const begin = (i * run.kept + c) * run.columns;
      lines.push({
        id: run.candidates[i * run.kept + c], values: run.chances.subarray(begin, begin + run.columns), colour: LINES[c], dash: DASHES[c],
      });
    }
    if (run.targets[i] >= 0 && run.known[i] && !lines.some(line => line.id === run.targets[i])) {
      const values = run.arrays.nll.slice(i * run.columns, (i + 1) * run.columns).map(nll => Math.exp(-nll));
      lines.push({ id: run.targets[i], values, colour: view.colours.ink, dash: "2 3" });
    }
    for (const line of lines) line.name = wordOf(run, line.id);
    const chart = lineChart({ label: "probabilities of the ten likeliest answers over the loops", width: this.width, loops: run.loops, series: lines, unit: "probability", marks: this.marks() });
    const order = [...lines].sort((a, b) => b.values[t] - a.values[t]);
    const list = html("ol", { class: "ten" });
    for (const line of order) {
      const truth = line.id === run.targets[i] ? " ✓" : "";
      const word = html("span", { class: "word", title: line.name }, line.name + truth);
      list.append(html("li", {}, swatch(line.colour, line.dash), word, html("span", { class: "p" }, digits(line.values[t], 3))));
    }
    return figure(`top-ten-${run.label}`, `Likeliest answers, in order at loop ${t}`, chart, [], [list]);
  }

  drawNorms() {
    const { run, view } = this, { i } = view.state;
    if (i < 0 || i >= run.rows || !this.normsPlace) return;
    const of = name => run.arrays[name].subarray(i * run.columns, (i + 1) * run.columns);
    const lines = [
      { name: "‖h‖ state", values: of("state"), colour: LINES[0] },
      { name: "‖h′ − h‖ update", values: of("update"), colour: LINES[5] },
    ];
    if (run.anchor) lines.splice(1, 0, { name: "‖Δ‖ deviation from the anchor", values: of("deviation"), colour: LINES[2] });
    const level = view.state.rule === "update" ? { value: view.tau, colour: view.colours.accent, name: "threshold" } : null;
    const chart = lineChart({ label: "norms over the loops", width: this.width, loops: run.loops, series: lines, log: true, unit: "norm, logarithmic", marks: this.marks(), level });
    const names = html("ul", { class: "ten" }, ...lines.map(line => html("li", {}, swatch(line.colour, ""), html("span", {}, line.name))));
    const below = run.anchor ? [names] : [names, html("p", { class: "hint" }, `No deviation: ${run.noAnchor}.`)];
    this.normsPlace.replaceChildren(figure(`norms-${run.label}`, "Norms of state, deviation and update", chart, [], below));
  }

  async drawAttention() {
    const { run, view } = this, place = this.attentionPlace, { i } = view.state, t = Math.min(view.state.T, run.loops);
    await openAttention(run);
    if (place !== this.attentionPlace) return; // another token was chosen meanwhile
    const found = run.attention, many = found ? found.applications : 1;
    const application = Math.min(view.state.application, many - 1), head = found ? Math.min(view.state.head, found.heads - 1) : -1;
    const choices = [];
    if (found) {
      const heads = [[-1, "all heads"], ...[...Array(found.heads).keys()].map(h => [h, `head ${h + 1}`])];
      choices.push(choice("head", heads, head, value => view.set({ head: Number(value) })));
    }
    if (many > 1) {
      const names = [...Array(many).keys()].map(a => [a, `application ${a + 1}`]);
      choices.push(choice("application", names, application, value => view.set({ application: Number(value) })));
    }
    const weights = attentionRow(run, application, head, t, i);
    if (!weights) {
      const why = t === 0 ? "Before the first loop nothing has been looked at: choose a later loop." : "No attention is applied in this loop.";
      const text = run.packedAttention || !view.busy ? why : "Attention comes last: it is still being computed.";
      const caption = html("figcaption", {}, html("h3", {}, "Attention"), ...choices);
      place.replaceChildren(html("figure", { "data-figure": "attention" }, caption, html("p", { class: "hint" }, text)));
      return;
    }
    place.replaceChildren(figure(`attention-${run.label}`, `Attention in loop ${t}`, this.looking(weights, i), choices));
  }

  /** The earlier tokens as running text, each as deep in colour as its weight is large. */
  looking(weights, i) {
    const { run, view } = this, width = this.width, line = 25;
    const most = Math.max(...weights, Math.min(1, 4 / (i + 1))); // even attention looks even, not strong
    const measure = html("canvas").getContext("2d");
    measure.font = `12px ${MONO}`;
    let x = 0, y = 0;
    const drawn = [];
    for (let j = 0; j <= i; j++) {
      const word = wordOf(run, run.ids[j]), across = Math.min(width, Math.ceil(measure.measureText(word).width) + 8);
      if (x + across > width) { x = 0; y += line; }
      const share = weights[j] / most;
      const box = { x, y: y + 2, width: across - 2, height: line - 5, rx: 3, fill: "#0072b2", "fill-opacity": (0.85 * share).toFixed(3), stroke: j === i ? view.colours.ink : "none" };
      const text = { x: x + 3, y: y + 16, "font-size": 12, "font-family": MONO, fill: share > 0.55 ? "#ffffff" : view.colours.ink };
      drawn.push(svg("g", {}, svg("title", {}, `${word}: ${digits(weights[j], 3)}`), svg("rect", box), svg("text", text, word)));
      x += across;
    }
    const best = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 4);
    const summary = "most on " + best.map(j => `${wordOf(run, run.ids[j])} ${digits(weights[j], 2)}`).join("   ");
    const height = y + line + 20;
    const note = svg("text", { x: 0, y: height - 4, "font-size": 11, fill: view.colours.soft, "font-family": MONO }, summary);
    return picture(width, height, `what token ${i + 1} looks at`, svg("rect", { width, height, fill: view.colours.paper }), ...drawn, note);
  }

  /** What was expected after each loop, and what the loops found. */
  path(i) {
    const { run, view } = this, truth = run.truth[i], step = 58, left = 62, rows = [22, 48];
    const shown = [...truth.keys()].filter(t => truth[t] !== null);
    const width = left + Math.max(1, shown.length) * step, drawn = [svg("rect", { width, height: 78, fill: view.colours.paper })];
    for (const [y, name] of [[rows[0], "true path"], [rows[1], "found"]]) {
      drawn.push(svg("text", { x: 0, y: y + 4, "font-size": 11, fill: view.colours.soft }, name));
    }
    shown.forEach((t, k) => {
      const x = left + k * step, found = run.arrays.answer[i * run.columns + t], right = found === truth[t];
      if (k) drawn.push(svg("line", { x1: x - 12, x2: x - 4, y1: rows[0], y2: rows[0], stroke: view.colours.soft }));
      const place = { x: x + 22, "text-anchor": "middle", "font-size": 12, "font-family": MONO };
      const frame = { x, y: rows[1] - 12, width: 44, height: 22, rx: 4, fill: right ? "#0072b2" : "none", stroke: right ? "#0072b2" : "#d55e00", "stroke-dasharray": right ? null : "3 2" };
      drawn.push(svg("text", { ...place, y: rows[0] + 4, fill: view.colours.ink }, wordOf(run, truth[t]).slice(0, 6)));
      drawn.push(svg("rect", frame, svg("title", {}, right ? "as expected" : `expected ${wordOf(run, truth[t])}`)));
      drawn.push(svg("text", { ...place, y: rows[1] + 4, fill: right ? "#ffffff" : view.colours.ink }, wordOf(run, found).slice(0, 6)));
      drawn.push(svg("text", { ...place, y: 74, "font-size": 10, fill: view.colours.soft }, String(t)));
    });
    const chart = picture(width, 78, "the true path beside what the loops found", ...drawn);
    const wrapped = figure(`path-${run.label}`, "The true path, loop by loop", chart);
    chart.style.maxWidth = "none";
    wrapped.style.overflowX = "auto";
    return wrapped;
  }
}
