// The grid of tokens and loops. Only what is in sight is drawn, on one canvas that stays where it is while one scrolls.

const ROW = 22, HEAD = 24, WORD_CELL = 66, STOP = "#e8590c";

class Grid {
  constructor(run, place, view) {
    this.run = run;
    this.place = place;
    this.view = view;
    this.fits = new Map();
    this.canvas = html("canvas");
    this.space = html("div", {}, this.canvas);
    const label = `${run.label}: tokens down, loops across. Arrow keys move the chosen cell, Escape closes the token.`;
    this.element = html("div", { class: "scroller", tabindex: "0", role: "application", "aria-label": label, "data-grid": place }, this.space);
    this.element.addEventListener("scroll", () => view.scrolled(this));
    this.element.addEventListener("keydown", event => this.key(event));
    this.canvas.addEventListener("mousemove", event => view.hover(this.at(event), this, event));
    this.canvas.addEventListener("mouseleave", () => view.hover(null, this));
    this.canvas.addEventListener("click", event => {
      const cell = this.at(event);
      if (cell) view.choose(cell);
    });
  }

  layout() {
    const box = this.element, state = this.view.state;
    const wide = box.clientWidth || 600;
    this.gutter = wide < 500 ? 96 : 132;
    const fitting = Math.max(5, Math.floor((wide - this.gutter - 14) / this.run.columns));
    this.cell = state.cells === "narrow" ? fitting : Math.max(WORD_CELL, fitting);
    const height = HEAD + ROW * this.run.rows;
    this.space.style.width = `${this.gutter + this.cell * this.run.columns}px`;
    this.space.style.height = `${height}px`;
    box.style.height = `${Math.min(height + 16, Math.max(260, Math.round(innerHeight * 0.66)))}px`;
    const ratio = devicePixelRatio || 1;
    const across = Math.min(box.clientWidth, this.gutter + this.cell * this.run.columns), down = Math.min(box.clientHeight, height);
    this.size = [across, down];
    this.canvas.width = Math.round(across * ratio);
    this.canvas.height = Math.round(down * ratio);
    this.canvas.style.width = `${across}px`;
    this.canvas.style.height = `${down}px`;
    this.fits.clear();
  }

  /** The cell under the pointer. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const i = Math.floor((y - HEAD + this.element.scrollTop) / ROW);
    const t = Math.floor((x - this.gutter + this.element.scrollLeft) / this.cell);
    if (y < HEAD || i < 0 || i >= this.run.rows || t >= this.run.columns) return null;
    return { i, t: x < this.gutter ? this.view.state.T : t };
  }

  key(event) {
    const { state } = this.view, last = this.run.rows - 1, i = state.i < 0 ? 0 : state.i;
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0],
      Home: [0, -state.T], End: [0, this.run.loops], Enter: [0, 0],
    };
    if (event.key === "Escape") { this.view.close(); return; }
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const cell = { i: Math.min(last, Math.max(0, i + move[0])), t: Math.min(this.run.loops, Math.max(0, state.T + move[1])) };
    this.view.choose(cell);
    this.view.show(cell);
  }

  /** Scroll as little as needed to have a cell in sight. */
  show({ i, t }) {
    const box = this.element, [across, down] = this.size;
    const y = i * ROW, x = t * this.cell;
    if (y < box.scrollTop) box.scrollTop = y;
    if (y + ROW > box.scrollTop + down - HEAD) box.scrollTop = y + ROW - down + HEAD;
    if (x < box.scrollLeft) box.scrollLeft = x;
    if (x + this.cell > box.scrollLeft + across - this.gutter) box.scrollLeft = x + this.cell - across + this.gutter;
  }

  draw() {
    const ratio = devicePixelRatio || 1, context = this.canvas.getContext("2d"), [across, down] = this.size;
    const left = this.element.scrollLeft, top = this.element.scrollTop;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const pen = new CanvasPen(context, this);
    const rows = [Math.floor(top / ROW), Math.min(this.run.rows, Math.ceil((top + down - HEAD) / ROW))];
    const columns = [Math.floor(left / this.cell), Math.min(this.run.columns, Math.ceil((left + across - this.gutter) / this.cell))];
    this.paint(pen, { across, down, left, top, rows, columns });
  }

  /** The whole grid as an SVG, whatever is in sight. */
  svgText() {
    const across = this.gutter + this.cell * this.run.columns, down = HEAD + ROW * this.run.rows;
    const pen = new SvgPen(across, down, `${this.run.label}: ${QUANTITIES[this.view.state.q].label}`, this);
    this.paint(pen, { across, down, left: 0, top: 0, rows: [0, this.run.rows], columns: [0, this.run.columns] });
    return pen.text();
  }

  paint(pen, sight) {
    const { run, view } = this, { state } = view, colours = view.colours;
    const { across, down, left, top, rows, columns } = sight;
    const x = t => this.gutter + t * this.cell - left, y = i => HEAD + i * ROW - top;
    const quantity = QUANTITIES[state.q], range = view.range;
    pen.rect(0, 0, across, down, colours.paper);
    pen.clip(this.gutter, HEAD, across - this.gutter, down - HEAD);
    for (let i = rows[0]; i < rows[1]; i++) {
      for (let t = columns[0]; t < columns[1]; t++) this.paintCell(pen, i, t, x(t), y(i), quantity, range, colours);
    }
    this.paintExits(pen, x, y, rows);
    const hovered = view.hovered;
    if (hovered && hovered.i < run.rows && hovered.t < run.columns) pen.frame(x(hovered.t), y(hovered.i), this.cell, ROW, "#ffffff", colours.ink, 1.5);
    if (state.i >= 0 && state.i < run.rows && state.T < run.columns) pen.frame(x(state.T), y(state.i), this.cell, ROW, "#ffffff", "#000000", 2.5);
    pen.unclip();
    this.paintEdges(pen, x, y, sight, colours);
  }

  paintCell(pen, i, t, x, y, quantity, range, colours) {
    const { run } = this, k = i * run.columns + t, w = this.cell;
    const shade = colour(position(quantity, range, quantity.at(run, i, k)));
    pen.rect(x, y, w - (w > 9 ? 1 : 0), ROW - 1, shade ? shade.fill : colours.tint);
    if (!run.known[i]) return;
    const ink = shade ? shade.text : colours.ink, answer = run.arrays.answer[k];
    if (t > 0 && answer !== run.arrays.answer[k - 1]) pen.rect(x, y + 3, w > 20 ? 2.5 : 1.5, ROW - 7, ink);
    if (w >= 34) pen.word(wordOf(run, answer), x + 6, y + 15, w - 9, ink, answer === run.targets[i]);
    const truth = run.truth && run.truth[i] ? run.truth[i][t] : null;
    if (truth !== null && truth !== undefined) pen.dot(x + w - 6, y + 6, 3, answer === truth, ink);
  }

  /** The staircase of the tokens' exits, and the dashed line where the whole text stops. */
  paintExits(pen, x, y, rows) {
    const found = this.view.exits[this.place], stairs = [], risers = [];
    for (let i = rows[0]; i < rows[1]; i++) {
      const edge = x(found.tokens[i] + 1) - 0.5;
      stairs.push([edge, y(i) - 0.5], [edge, y(i + 1) - 0.5]);
      risers.push([[edge, y(i) - 0.5], [edge, y(i + 1) - 0.5]]);
    }
    const whole = x(found.whole + 1) - 0.5;
    pen.line([[whole, y(rows[0])], [whole, y(rows[1])]], "#ffffff", 4.5, []);
    pen.line([[whole, y(rows[0])], [whole, y(rows[1])]], STOP, 2, [7, 4]);
    pen.line(stairs, STOP, 1, []);
    for (const riser of risers) pen.line(riser, "#ffffff", 5.5, []);
    for (const riser of risers) pen.line(riser, STOP, 3, []);
  }

  paintEdges(pen, x, y, { across, down, rows, columns }, colours) {
    const { run } = this, { state } = this.view;
    pen.clip(0, HEAD, this.gutter, down - HEAD);
    pen.rect(0, HEAD, this.gutter, down - HEAD, colours.paper);
    for (let i = rows[0]; i < rows[1]; i++) {
      if (i === state.i) pen.rect(0, y(i), this.gutter - 2, ROW - 1, colours.tint);
      pen.label(String(i + 1), 30, y(i) + 15, "end", colours.soft, 10);
      pen.word(wordOf(run, run.ids[i]), 36, y(i) + 15, this.gutter - 42, colours.ink, i === state.i);
    }
    pen.unclip();
    pen.clip(this.gutter, 0, across - this.gutter, HEAD);
    pen.rect(this.gutter, 0, across - this.gutter, HEAD, colours.paper);
    const every = Math.ceil(26 / this.cell);
    for (let t = columns[0]; t < columns[1]; t++) {
      const chosen = t === state.T;
      if (chosen) pen.rect(x(t), 2, this.cell - 1, HEAD - 4, colours.ink);
      if (chosen && this.cell >= 16 || !chosen && t % every === 0) {
        pen.label(String(t), x(t) + this.cell / 2, 16, "middle", chosen ? colours.paper : colours.soft, 11);
      }
    }
    pen.unclip();
    pen.rect(0, 0, this.gutter, HEAD, colours.paper);
    pen.label("token", 36, 16, "start", colours.soft, 11);
    if (this.gutter > 100) pen.label("loop", this.gutter - 8, 16, "end", colours.soft, 11);
  }
}

/** Cut a word to a width, as often as not from memory. */
function fitted(fits, context, word, width, bold) {
  const key = `${bold ? 1 : 0}${Math.round(width)}${word}`;
  let cut = fits.get(key);
  if (cut === undefined) {
    context.font = `${bold ? "bold " : ""}12px ${MONO}`;
    cut = word;
    while (cut.length > 1 && context.measureText(cut).width > width) cut = cut.slice(0, cut.endsWith("…") ? -2 : -1) + "…";
    fits.set(key, cut);
  }
  return cut;
}

class CanvasPen {
  constructor(context, grid) { this.c = context; this.grid = grid; }
  rect(x, y, w, h, fillStyle) { this.c.fillStyle = fillStyle; this.c.fillRect(x, y, w, h); }
  clip(x, y, w, h) { this.c.save(); this.c.beginPath(); this.c.rect(x, y, w, h); this.c.clip(); }
  unclip() { this.c.restore(); }
  frame(x, y, w, h, outer, inner, width) {
    this.c.strokeStyle = outer; this.c.lineWidth = width + 2; this.c.strokeRect(x, y, w - 1, h - 1);
    this.c.strokeStyle = inner; this.c.lineWidth = width; this.c.strokeRect(x, y, w - 1, h - 1);
  }
  word(text, x, y, width, ink, bold) {
    const cut = fitted(this.grid.fits, this.c, text, width, bold);
    this.c.font = `${bold ? "bold " : ""}12px ${MONO}`;
    this.c.textAlign = "start"; this.c.fillStyle = ink; this.c.fillText(cut, x, y);
  }
  label(text, x, y, anchor, ink, size) {
    this.c.font = `${size}px ${FONT}`; this.c.fillStyle = ink;
    this.c.textAlign = anchor === "middle" ? "center" : anchor; this.c.fillText(text, x, y);
  }
  dot(x, y, radius, filled, ink) {
    this.c.beginPath(); this.c.arc(x, y, radius, 0, 2 * Math.PI);
    this.c.fillStyle = this.c.strokeStyle = ink; this.c.lineWidth = 1.2;
    if (filled) this.c.fill(); else this.c.stroke();
  }
  line(points, stroke, width, dash) {
    this.c.beginPath(); this.c.setLineDash(dash); this.c.strokeStyle = stroke; this.c.lineWidth = width;
    points.forEach(([x, y], k) => k ? this.c.lineTo(x, y) : this.c.moveTo(x, y));
    this.c.stroke(); this.c.setLineDash([]);
  }
}

/** The same strokes as elements of an SVG. Nothing is out of sight there, so nothing is clipped. */
class SvgPen {
  constructor(width, height, label, grid) {
    this.root = picture(width, height, label, svg("title", {}, label));
    this.measure = html("canvas").getContext("2d");
    this.grid = grid;
  }
  add(tag, attributes, ...children) { this.root.append(svg(tag, attributes, ...children)); }
  rect(x, y, width, height, color) { this.add("rect", { x, y, width, height, fill: color }); }
  clip() {}
  unclip() {}
  frame(x, y, w, h, outer, inner, width) {
    for (const [stroke, size] of [[outer, width + 2], [inner, width]]) {
      this.add("rect", { x, y, width: w - 1, height: h - 1, fill: "none", stroke, "stroke-width": size });
    }
  }
  word(text, x, y, width, ink, bold) {
    const cut = fitted(this.grid.fits, this.measure, text, width, bold);
    this.add("text", { x, y, fill: ink, "font-family": MONO, "font-size": 12, "font-weight": bold ? "bold" : null }, cut);
  }
  label(text, x, y, anchor, ink, size) { this.add("text", { x, y, fill: ink, "font-size": size, "text-anchor": anchor }, text); }
  dot(cx, cy, r, filled, ink) { this.add("circle", { cx, cy, r, fill: filled ? ink : "none", stroke: ink, "stroke-width": 1.2 }); }
  line(points, stroke, width, dash) {
    const d = points.map(([x, y], k) => `${k ? "L" : "M"}${x} ${y}`).join("");
    this.add("path", { d, fill: "none", stroke, "stroke-width": width, "stroke-dasharray": dash.join(" ") || null });
  }
  text() { return new XMLSerializer().serializeToString(this.root); }
}
