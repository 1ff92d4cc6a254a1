// The mesh: a square a rank, in blocks by the outer axes, rows and columns by the inner ones.

const MOST_ACROSS = 32;

function meshView(run, selection) {
  const cells = [];
  const layout = layoutOf(run);
  const label = (rank) => [`rank ${rank}`, run.place(rank), run.role(rank), run.ranks[rank] && run.ranks[rank].state].filter(Boolean).join(", ");
  const blocks = layout.blocks.map((block) => {
    const squares = block.ranks.map((rank) => {
      const role = run.role(rank);
      cells[rank] = el("div", { role: "option", id: `rank-${rank}`, class: `square ${role === "at fault" ? "odd" : role ? "late" : ""}`, "data-rank": rank, "aria-label": label(rank), "aria-selected": "false" }, `${rank}`);
      return cells[rank];
    });
    return el("div", { role: "group", class: "block", "aria-label": block.title || "ranks" },
      block.title ? el("div", { class: "block-title", "aria-hidden": "true" }, block.title) : null,
      el("div", { class: "squares", role: "presentation", vars: { "--across": `${layout.across}` } }, squares));
  });
  const list = el("div", { role: "listbox", tabindex: "0", class: `mesh${run.worldSize > 1000 ? " many most" : run.worldSize > 256 ? " many" : run.worldSize > 64 ? " some" : ""}`, "aria-label": `Ranks of the mesh ${run.head.topology}`, "aria-describedby": "mesh-note" }, blocks);
  const note = el("p", { class: "note", id: "mesh-note" });
  const axes = run.mesh.axes.map((axis, place) => [`${place}`, `${axis.name} (${axis.size})`]);
  const view = new MeshDrawing(run, selection, list, cells, note, layout.across);
  return section("mesh", "Mesh",
    el("div", { class: "tools" },
      axes.length ? choice("Colour and groups by", axes, `${selection.axis}`, (value) => selection.chooseAxis(Number(value))) : el("span", { class: "faint" }, "One rank, no groups."),
      el("span", { class: "keys" }, layout.note, run.odd.size ? el("span", { class: "key odd" }, "✗ at fault") : null, run.late.size ? el("span", { class: "key late" }, "… waiting") : null)),
    view.element, note);
}

function layoutOf(run) {
  const { dense, places } = run.mesh;
  const inner = dense.slice(-2);
  const outer = dense.slice(0, -2);
  const width = inner.length ? inner[inner.length - 1][1] : 1;
  const height = inner.length > 1 ? inner[0][1] : 1;
  const blocks = new Map();
  // In rank order a block's squares come row by row, as the last axis is the innermost one.
  for (let rank = 0; rank < run.worldSize; rank++) {
    const title = outer.map(([axis], place) => `${axis} ${places[rank][place]}`).join(", ");
    if (!blocks.has(title)) blocks.set(title, { title, ranks: [] });
    blocks.get(title).ranks.push(rank);
  }
  let across = Math.min(width, MOST_ACROSS);
  if (height === 1 && width > 8) across = Math.min(MOST_ACROSS, Math.max(8, 2 ** Math.ceil(Math.log2(Math.sqrt(width)))));
  const wrapped = across < width ? " (wrapped)" : "";
  const texts = [inner.length > 1 && `rows: ${inner[0][0]}`, inner.length && `columns: ${inner[inner.length - 1][0]}${wrapped}`];
  return { blocks: [...blocks.values()], across, note: texts.filter(Boolean).join(", ") };
}

class MeshDrawing {
  constructor(run, selection, list, cells, note, across) {
    Object.assign(this, { run, selection, list, cells, note, across, at: selection.rank ?? 0, lit: [] });
    this.element = list;
    this.colour();
    list.addEventListener("pointerover", (event) => this.over(event));
    list.addEventListener("pointerleave", () => { hideTip(); this.light(this.focused() ? this.at : null); });
    list.addEventListener("click", (event) => this.click(event));
    list.addEventListener("focus", () => this.move(this.at));
    list.addEventListener("blur", () => { this.cells[this.at].classList.remove("at"); list.removeAttribute("aria-activedescendant"); this.light(null); });
    list.addEventListener("keydown", (event) => this.key(event));
    selection.on("axis", () => { this.colour(); this.light(this.focused() ? this.at : null); });
    selection.on("rank", (from) => this.chosen(from));
    this.say(null);
  }

  focused() {
    return document.activeElement === this.list;
  }

  colour() {
    const axis = this.run.mesh.axes[this.selection.axis];
    this.cells.forEach((cell, rank) => cell.style.setProperty("--h", hueOf(axis ? axis.groups[rank] : 0)));
  }

  over(event) {
    const cell = event.target.closest("[data-rank]");
    if (!cell) return;
    this.light(Number(cell.dataset.rank));
    showTip(event, cell.getAttribute("aria-label"));
  }

  click(event) {
    const cell = event.target.closest("[data-rank]");
    if (!cell) return;
    this.at = Number(cell.dataset.rank);
    this.selection.chooseRank(this.at, "mesh");
    this.list.focus({ preventScroll: true });
    this.move(this.at);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.run.worldSize - 1;
    const to = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, ArrowUp: this.at - this.across, ArrowDown: this.at + this.across, Home: 0, End: last }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      if (to >= 0 && to <= last) this.move(to);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.selection.chooseRank(this.at, "mesh");
    }
  }

  move(rank) {
    this.cells[this.at].classList.remove("at");
    this.at = rank;
    this.cells[rank].classList.add("at");
    this.cells[rank].scrollIntoView({ block: "nearest" });
    this.list.setAttribute("aria-activedescendant", `rank-${rank}`);
    this.light(rank);
  }

  // Highlight a rank's group along the chosen axis; null: none.
  light(rank) {
    for (const lit of this.lit) this.cells[lit].classList.remove("lit");
    this.lit = rank === null ? [] : this.selection.members(rank);
    for (const lit of this.lit) this.cells[lit].classList.add("lit");
    this.list.classList.toggle("lighting", rank !== null);
    this.say(rank);
  }

  say(rank) {
    const axis = this.run.mesh.axes[this.selection.axis];
    if (!axis) this.note.textContent = "";
    else if (rank === null) this.note.textContent = `${plural(axis.members.length, "group")} of ${axis.size} along ${axis.name}; one colour a group${axis.members.length > HUES.length ? ", and colours come again" : ""}. Point at a rank, or move with the arrow keys.`;
    else this.note.textContent = `rank ${rank} (${this.run.place(rank)}): its ${axis.name} group is ${rankText(this.selection.members(rank), 16)}`;
  }

  chosen(from) {
    for (const cell of this.list.querySelectorAll("[aria-selected=true]")) cell.setAttribute("aria-selected", "false");
    const { rank } = this.selection;
    this.cells[rank].setAttribute("aria-selected", "true");
    if (from !== "mesh") {
      this.cells[this.at].classList.remove("at");
      this.at = rank;
      if (this.focused()) this.move(rank);
      else this.bring(rank);
    }
  }

  // Scrolls the mesh only, not the page.
  bring(rank) {
    const [box, list] = [this.cells[rank].getBoundingClientRect(), this.list.getBoundingClientRect()];
    if (box.top < list.top || box.bottom > list.bottom) this.list.scrollTop += box.top - list.top - list.height / 2;
  }
}
