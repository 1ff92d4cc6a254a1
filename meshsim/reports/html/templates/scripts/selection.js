// What is chosen in the run that is shown: a rank, one of its calls, an axis. Views listen to it.

class Selection extends EventTarget {
  constructor(run) {
    super();
    this.run = run;
    this.rank = null;
    this.call = null;
    const { axes } = run.mesh;
    this.axis = axes.length ? 0 : -1;
    const inner = run.mesh.dense[run.mesh.dense.length - 1];
    if (inner) this.axis = Math.max(0, axes.findIndex((axis) => axis.names.includes(inner[0])));
  }

  chooseRank(rank, from) {
    if (rank < 0 || rank >= this.run.worldSize) return;
    this.rank = rank;
    this.call = null;
    this.dispatchEvent(new CustomEvent("rank", { detail: { from } }));
  }

  chooseCall(call, from) {
    const changed = this.rank !== call.rank;
    this.rank = call.rank;
    this.call = call;
    if (changed) this.dispatchEvent(new CustomEvent("rank", { detail: { from } }));
    this.dispatchEvent(new CustomEvent("call", { detail: { from } }));
  }

  chooseAxis(axis) {
    this.axis = axis;
    this.dispatchEvent(new CustomEvent("axis"));
  }

  on(name, heard) {
    this.addEventListener(name, (event) => heard(event.detail ? event.detail.from : undefined));
  }

  // The ranks that share a rank's group along the chosen axis.
  members(rank) {
    if (this.axis < 0) return [rank];
    const axis = this.run.mesh.axes[this.axis];
    return axis.members[axis.groups[rank]];
  }
}

// Buttons for a few ranks, that choose the rank; of many their ranges, with a button for the first.
function rankButtons(selection, ranks, most = 24) {
  const many = ranks.length > most;
  const shown = ranks.slice(0, many ? 1 : most).map((rank) =>
    el("button", { type: "button", class: "rank-link", "aria-label": `rank ${rank}`, onclick: () => selection.chooseRank(rank, "button") }, `${rank}`));
  return el("span", { class: "rank-links" }, many ? `${rankText(ranks)} (${ranks.length.toLocaleString("en")} ranks); first:` : null, shown);
}
