// The timeline: a row a rank, a box a call. Only what is in view is drawn, so thousands of ranks are no more work.

const RULER = 22;
const ROWS = { tall: 22, small: 9 };
const MOST_HEIGHT = 440;
const ALL_ROWS = 640; // the height in which "all in view" puts every rank, if need be on less than a pixel each
const MOST_WIDTH = 8e6;
const COLOUR_NAMES = ["text", "faint", "line", "panel", "odd", "late", "focus", "odd-bg", "late-bg"];

function timelineView(run, selection) {
  const total = run.calls.reduce((sum, flat) => sum + flat.length / FIELDS, 0);
  if (!total) return { element: section("timeline", "Timeline", el("p", { class: "faint" }, "No rank made a call.")), end() {} };
  return new Timeline(run, selection, total);
}

class Timeline {
  constructor(run, selection, total) {
    Object.assign(this, { run, selection, internal: false, rows: run.worldSize > 400 ? "small" : "tall", by: run.head.backend === "fake" ? "order" : "time" });
    if (run.hasInternal && !run.kinds.some((kind) => !kind.internal)) this.internal = true;
    this.hues = new Map(run.ops.map((op, place) => [op, hueOf(place)]));
    this.cursor = null;
    this.build(total);
    this.setAxis();
    this.listen();
  }

  build(total) {
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.area = el("div", { class: "timeline-area" }, this.canvas);
    this.scroller = el("div", { class: "timeline", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": `Timeline of ${plural(this.run.worldSize, "rank")}, ${plural(total, "call")}`, "aria-describedby": "timeline-keys" }, this.area);
    this.told = el("p", { class: "note told", role: "status", "aria-live": "polite", id: "timeline-told" }, "Choose a call to see it here.");
    const zoom = (factor, name, text) => el("button", { type: "button", "aria-label": name, title: name, onclick: () => this.zoom(factor) }, text);
    const tools = el("div", { class: "tools" },
      choice("Along", [["order", "order of calls"], ["time", "time"]], this.by, (value) => { this.by = value; this.setAxis(); }),
      choice("Rows", [["tall", "tall"], ["small", "small"], ["all", "all in view"]], this.rows, (value) => { this.rows = value; this.resize(); this.reveal(this.selection.rank ?? 0); }),
      el("span", { class: "buttons" }, zoom(1.5, "Zoom in", "+"), zoom(1 / 1.5, "Zoom out", "−"), el("button", { type: "button", onclick: () => this.fit() }, "Fit")),
      this.run.hasInternal ? el("label", { class: "choice" }, el("input", { type: "checkbox", checked: this.internal, onchange: (event) => { this.internal = event.target.checked; this.cursor = null; this.setAxis(); } }), " meshsim's own calls") : null);
    this.legend = el("p", { class: "legend" });
    this.element = section("timeline", "Timeline", tools, this.scroller, this.told, this.legend,
      el("p", { class: "faint", id: "timeline-keys" }, "Arrow keys go from call to call and from rank to rank, Home and End to a rank's first and last call, Page Up and Page Down by 20 ranks, + and − zoom, Enter chooses. ",
        this.run.head.backend === "fake" ? "In the fake world ranks take turns, so times say little." : ""));
  }

  colourLegend() {
    const shown = this.run.ops.filter((op) => this.run.kinds.some((kind) => kind.op === op && (this.internal || !kind.internal)));
    this.legend.replaceChildren(...shown.slice(0, 24).map((op) => el("span", { class: "key", vars: { "--h": this.hues.get(op) } }, el("span", { class: "swatch", "aria-hidden": "true" }), op)),
      el("span", { class: "key" }, el("span", { class: "swatch unfinished", "aria-hidden": "true" }), "not completed"));
  }

  listen() {
    this.scroller.addEventListener("scroll", () => this.ask());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.scroller.addEventListener("focus", () => { if (!this.cursor) this.moveTo(this.selection.rank ?? 0, 0); this.ask(); });
    this.scroller.addEventListener("blur", () => this.ask());
    this.scroller.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX - this.scroller.getBoundingClientRect().left);
    }, { passive: false });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.watcher = () => this.ask();
    themeWatchers.add(this.watcher);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.scroller);
    this.selection.on("rank", (from) => { if (from !== "timeline") { this.cursor = null; this.reveal(this.selection.rank); } this.ask(); });
    this.selection.on("call", (from) => { if (from !== "timeline") this.showCall(this.selection.call); });
  }

  // No longer shown.
  end() {
    themeWatchers.delete(this.watcher);
    this.observer.disconnect();
  }

  callsOf(rank) {
    return this.run.callsOf(rank, this.internal);
  }

  setAxis() {
    const of = (rank) => this.callsOf(rank);
    this.axis = this.by === "order" ? new OrderAxis(this.run, of) : new TimeAxis(this.run, of);
    this.fitted = false;
    this.colourLegend();
    this.fit();
  }

  get labels() {
    return 18 + 8 * `${this.run.worldSize - 1}`.length + (this.run.odd.size || this.run.late.size ? 14 : 0);
  }

  get row() {
    if (this.rows !== "all") return ROWS[this.rows];
    return Math.min(22, (ALL_ROWS - RULER) / this.run.worldSize);
  }

  fit() {
    if (!this.scroller.clientWidth) return;
    this.axis.fit(this.scroller.clientWidth - this.labels - 1);
    this.fitted = true;
    this.resize();
    this.reveal(this.selection.rank ?? 0);
  }

  zoom(factor, at = this.scroller.clientWidth / 2) {
    const { axis, scroller, labels } = this;
    const x = (scroller.scrollLeft + at - labels) / axis.scale;
    const most = Math.max(axis.start, MOST_WIDTH / (axis.width / axis.scale));
    axis.scale = Math.min(this.by === "order" ? Math.min(most, 400) : most, Math.max(Math.min(axis.least, axis.start), axis.scale * factor));
    this.resize();
    scroller.scrollLeft = x * axis.scale + labels - at;
  }

  resize() {
    if (!this.scroller.clientWidth) return;
    if (!this.fitted) return this.fit();
    const height = RULER + this.run.worldSize * this.row + 1;
    const bar = this.axis.width + this.labels > this.scroller.clientWidth ? 16 : 2;
    this.scroller.style.height = `${(this.rows === "all" ? Math.ceil(height) : Math.min(MOST_HEIGHT, Math.ceil(height))) + bar}px`;
    this.area.style.height = `${Math.ceil(height)}px`;
    this.area.style.width = `${Math.max(this.scroller.clientWidth, Math.ceil(this.axis.width + this.labels))}px`;
    const ratio = window.devicePixelRatio || 1;
    const [width, tall] = [this.scroller.clientWidth, this.scroller.clientHeight];
    // Setting a canvas's size empties it.
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(tall * ratio)) this.canvas.height = Math.round(tall * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${tall}px`;
    this.ask();
  }

  ask() {
    this.asked ||= requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }

  // Drawing

  draw() {
    const { canvas, scroller, axis, row, labels } = this;
    const ratio = window.devicePixelRatio || 1;
    const pen = canvas.getContext("2d");
    const colours = canvasColours(COLOUR_NAMES);
    const [width, height] = [canvas.width / ratio, canvas.height / ratio];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const view = { pen, colours, width, height, left: scroller.scrollLeft, top: scroller.scrollTop, fills: new Map() };
    for (const [op, hue] of this.hues) view.fills.set(op, isDark() ? `hsl(${hue} 42% 34%)` : `hsl(${hue} 62% 80%)`);
    const first = Math.max(0, Math.floor(view.top / row));
    const last = Math.min(this.run.worldSize - 1, Math.floor((view.top + height - RULER) / row));
    pen.save();
    pen.beginPath();
    pen.rect(labels, RULER, width - labels, height - RULER);
    pen.clip();
    let drawn = 0;
    // Of ranks that share a line of pixels the first is drawn. Those at fault always are, and last, so that no
    // neighbour paints over them.
    const odd = [];
    let line = -1;
    for (let rank = first; rank <= last; rank++) {
      const y = RULER + rank * row - view.top;
      if (this.run.odd.has(rank) && odd.length < 1000) odd.push([rank, y]);
      else if (row >= 1 || Math.floor(y) !== line) drawn += this.drawRow(view, rank, y);
      line = Math.floor(y);
    }
    for (const [rank, y] of odd) drawn += this.drawRow(view, rank, y);
    this.drawCursor(view);
    pen.restore();
    this.drawLabels(view, first, last);
    this.drawRuler(view);
    canvas.dataset.drawn = drawn;
    canvas.dataset.rows = last - first + 1;
  }

  drawRow(view, rank, y) {
    const { pen, left, width, colours } = view;
    const { axis, row, labels } = this;
    const role = this.run.role(rank);
    // A tint of most rows would say nothing: their marks at the left do.
    const tinted = role === "at fault" ? true : role ? this.run.late.size <= 16 : rank === this.selection.rank;
    if (tinted) {
      pen.fillStyle = role === "at fault" ? colours["odd-bg"] : role ? colours["late-bg"] : colours.line;
      pen.fillRect(labels, y, width - labels, Math.max(1, row));
    }
    const calls = this.callsOf(rank);
    const end = left + width - labels;
    let [drawn, covered] = [0, -Infinity];
    for (let place = axis.first(calls, left); place < calls.length; place++) {
      const [from, to] = axis.span(calls[place], place);
      if (from > end) break;
      // What would fall on a pixel already painted is left out, unless it is what went wrong.
      if (to <= covered && calls[place].state === "completed" && axis instanceof TimeAxis) continue;
      covered = Math.max(covered, Math.ceil(Math.min(to, from + 1)));
      this.drawCall(view, calls[place], labels + from - left, labels + to - left, y);
      drawn++;
    }
    return drawn;
  }

  drawCall({ pen, colours, fills }, call, x1, x2, y) {
    const { row } = this;
    const pad = row > 12 ? 2 : row > 3 ? 0.5 : 0;
    const half = call.kind.async && this.axis instanceof TimeAxis && row > 12;
    const [top, height] = [y + pad + (half ? row / 2 - pad : 0), half ? row / 2 - pad : Math.max(1, row - 2 * pad)];
    const width = Math.max(1, x2 - x1);
    pen.fillStyle = fills.get(call.kind.op);
    pen.fillRect(x1, top, width, height);
    if (call.state !== "completed") {
      pen.fillStyle = colours.odd;
      if (row > 6) {
        const edge = row > 12 ? 2 : 1;
        pen.fillRect(x1, top, width, edge);
        pen.fillRect(x1, top + height - edge, width, edge);
        pen.fillRect(x1, top, Math.min(edge, width), height);
        pen.fillRect(x2 - Math.min(edge, width), top, Math.min(edge, width), height);
      } else pen.fillRect(x1, top, width, height);
    }
    const from = Math.max(x1, this.labels);
    if (row > 12 && !half && x2 - from > 30) {
      pen.font = "11px system-ui, sans-serif";
      pen.fillStyle = colours.text;
      pen.textBaseline = "middle";
      const text = `${call.kind.op}${call.kind.peer !== undefined ? ` ${["send", "isend"].includes(call.kind.op) ? "→" : "←"} ${call.kind.peer}` : ""}${call.kind.axis && x2 - from > 120 ? ` ${call.kind.axis}` : ""}`;
      pen.save();
      pen.beginPath();
      pen.rect(from, top, x2 - from - 3, height);
      pen.clip();
      pen.fillText(text, from + 5, top + height / 2 + 0.5);
      pen.restore();
    }
  }

  drawCursor({ pen, colours, left, top }) {
    if (!this.cursor) return;
    const { rank, place } = this.cursor;
    const call = this.callsOf(rank)[place];
    if (!call) return;
    const [from, to] = this.axis.span(call, place);
    pen.strokeStyle = colours.focus;
    pen.lineWidth = 2.5;
    pen.strokeRect(this.labels + from - left + 0.5, RULER + rank * this.row - top + 0.5, Math.max(4, to - from - 1), Math.max(4, this.row - 1));
  }

  drawLabels({ pen, colours, height, top }, first, last) {
    const { row, labels } = this;
    pen.fillStyle = colours.panel;
    pen.fillRect(0, RULER, labels, height - RULER);
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.font = `${row > 12 ? 12 : 9}px system-ui, sans-serif`;
    const every = row >= 9 ? 1 : [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((step) => step * row >= 11) || 2048;
    const few = this.run.odd.size <= 4 ? this.run.verdict.ranks : [];
    for (let rank = first; rank <= last; rank++) {
      const role = this.run.role(rank);
      const y = RULER + rank * row - top;
      if (role) {
        pen.fillStyle = role === "at fault" ? colours.odd : colours.late;
        pen.fillRect(0, y, 4, Math.max(row, 1.5));
      }
      const named = role === "at fault" && few.length > 0;
      if (!named && (rank % every || few.some((odd) => Math.abs(odd - rank) * row < 11 && row < 9))) continue;
      pen.fillStyle = role === "at fault" ? colours.odd : role ? colours.late : colours.text;
      pen.fillText(`${role === "at fault" ? "✗ " : role && row > 12 ? "… " : ""}${rank}`, labels - 8, y + Math.max(row, 6) / 2 + 0.5);
    }
    pen.textAlign = "left";
    pen.fillStyle = colours.line;
    pen.fillRect(labels - 1, RULER, 1, height);
  }

  drawRuler({ pen, colours, width, left }) {
    const { labels } = this;
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, width, RULER);
    pen.fillStyle = colours.line;
    pen.fillRect(0, RULER - 1, width, 1);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colours.faint;
    pen.fillText("rank", 6, RULER / 2);
    pen.save();
    pen.beginPath();
    pen.rect(labels, 0, width - labels, RULER);
    pen.clip();
    const centred = this.by === "order";
    pen.textAlign = centred ? "center" : "left";
    for (const [x, text] of this.axis.ticks(Math.max(0, left - 90), left + width)) {
      const at = labels + x - left;
      if (!centred) pen.fillRect(at, RULER - 7, 1, 7);
      pen.fillText(text, at + (centred ? 0 : 4), RULER / 2);
    }
    pen.textAlign = "left";
    pen.restore();
  }

  // Pointer and keys

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const rank = Math.floor((py - RULER + this.scroller.scrollTop) / this.row);
    if (py < RULER || rank < 0 || rank >= this.run.worldSize) return null;
    const x = px - this.labels + this.scroller.scrollLeft;
    const calls = this.callsOf(rank);
    let found = -1;
    for (let place = px < this.labels ? calls.length : this.axis.first(calls, x - 2); place < calls.length; place++) {
      const [from, to] = this.axis.span(calls[place], place);
      if (from > x + 2) break;
      if (to >= x - 2) found = place;
    }
    return { rank, place: found, call: calls[found] };
  }

  hover(event) {
    const found = this.find(event);
    if (!found) return hideTip();
    const { rank, call } = found;
    return showTip(event, call ? call.text().split(" · ").join("\n") + (call.site && call.site[3] ? `\n${call.site[3]}` : "") : [`rank ${rank}`, this.run.place(rank), this.run.role(rank)].filter(Boolean).join(", "));
  }

  click(event) {
    const found = this.find(event);
    if (!found) return;
    if (found.call) this.moveTo(found.rank, found.place, true);
    else this.selection.chooseRank(found.rank, "timeline");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { rank, place } = this.cursor || { rank: this.selection.rank ?? 0, place: 0 };
    const last = this.run.worldSize - 1;
    const moves = {
      ArrowLeft: [rank, place - 1], ArrowRight: [rank, place + 1], ArrowUp: [rank - 1, place], ArrowDown: [rank + 1, place],
      Home: [rank, 0], End: [rank, Infinity], PageUp: [Math.max(0, rank - 20), place], PageDown: [Math.min(last, rank + 20), place],
    };
    if (moves[event.key]) this.moveTo(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "Enter" || event.key === " ") this.moveTo(rank, place, true);
    else return;
    event.preventDefault();
  }

  moveTo(rank, place, chosen = false) {
    if (rank < 0 || rank >= this.run.worldSize) return;
    const calls = this.callsOf(rank);
    const at = Math.max(0, Math.min(place, calls.length - 1));
    this.cursor = { rank, place: at };
    this.reveal(rank, calls[at], at);
    if (calls[at]) this.tell(calls[at]);
    else this.told.textContent = `rank ${rank} made no call`;
    if (chosen && calls[at]) this.selection.chooseCall(calls[at], "timeline");
    else if (chosen) this.selection.chooseRank(rank, "timeline");
    this.ask();
  }

  showCall(call) {
    const place = this.callsOf(call.rank).indexOf(call);
    if (place >= 0) this.moveTo(call.rank, place);
  }

  tell(call) {
    const role = this.run.role(call.rank);
    this.told.replaceChildren(el("span", {}, call.text()), role ? el("span", { class: `badge ${role === "waiting" ? "late" : "odd"}` }, role === "waiting" ? "… waiting" : "✗ at fault") : "", call.site && call.site[3] ? el("code", {}, call.site[3]) : "");
  }

  // Bring a rank's row, and a call of it, into view.
  reveal(rank, call, place) {
    const { scroller, row, labels, axis } = this;
    const y = rank * row;
    const room = scroller.clientHeight - RULER;
    if (y < scroller.scrollTop || y + row > scroller.scrollTop + room) scroller.scrollTop = y - room / 2;
    if (!call) return;
    const [from, to] = axis.span(call, place);
    const width = scroller.clientWidth - labels;
    if (from < scroller.scrollLeft || Math.min(to, from + 60) > scroller.scrollLeft + width) scroller.scrollLeft = from - width / 3;
  }
}
