// The cycle of ranks that wait for each other, drawn as a ring, and the same as a list.

const RING = { most: 36, size: 380, node: 17 };

function cycleView(run, selection) {
  const edges = run.verdict.cycle;
  if (!edges || !edges.length) return null;
  const more = (run.verdict.cycle_ranks || []).length - 1;
  const items = edges.slice(0, 100).map((edge) => el("li", {},
    el("button", { type: "button", class: "rank-link", "aria-label": `rank ${edge.rank}`, onclick: () => selection.chooseRank(edge.rank, "button") }, `${edge.rank}`),
    ` → ${edge.waits_for}: ${edge.text.replace(/^rank \d+ /, "").replace(/ at \S+:\d+$/, "")}`,
    edge.call ? el("div", {}, sourceLine(edge.call.file, edge.call.line, edge.call.text, false)) : null));
  return section("cycle", "Who waits for whom",
    el("div", { class: "cycle" }, ring(edges, selection), el("div", { class: "cycle-list", tabindex: "0", role: "region", "aria-label": "The cycle, rank by rank" },
      el("ol", {}, items), edges.length > 100 ? el("p", { class: "faint" }, `and ${edges.length - 100} more`) : null)),
    more > 0 ? el("p", { class: "faint" }, `${plural(more, "more such cycle")}: ${run.verdict.cycle_ranks.slice(1, 9).map((ranks) => rankRing(ranks)).join("; ")}${more > 8 ? " …" : ""}`) : null);
}

const rankRing = (ranks) => (ranks.length > 12 ? `${ranks.slice(0, 12).join("→")}→…→${ranks[0]}` : [...ranks, ranks[0]].join("→"));

function ring(edges, selection) {
  const cut = edges.length > RING.most;
  const shown = cut ? edges.slice(0, RING.most - 1) : edges;
  const count = shown.length + (cut ? 1 : 0);
  const { size, node } = RING;
  const middle = size / 2;
  const radius = middle - (count > 14 ? 40 : 66);
  const spot = (place, by = radius) => {
    const angle = (2 * Math.PI * place) / count - Math.PI / 2;
    return [middle + by * Math.cos(angle), middle + by * Math.sin(angle)];
  };
  const small = Math.min(node, Math.max(9, (Math.PI * radius) / count - 4));
  const arrows = [];
  const nodes = [];
  for (let place = 0; place < count; place++) {
    arrows.push(arrow(spot(place), spot((place + 1) % count), small, count === 2, count === 1));
    const [x, y] = spot(place);
    const edge = shown[place];
    const label = edge ? `${edge.rank}` : `+${edges.length - shown.length}`;
    nodes.push(svg("g", { class: edge ? "ring-node" : "ring-node rest", onclick: edge ? () => selection.chooseRank(edge.rank, "ring") : null },
      svg("title", {}, edge ? edge.text : `${edges.length - shown.length} more ranks`),
      svg("circle", { cx: x, cy: y, r: small }),
      svg("text", { x, y: y + small * 0.32, "font-size": label.length > 3 ? small * 0.72 : Math.min(15, small * 0.95), "text-anchor": "middle" }, label)));
    if (edge && edge.call && count <= 14) {
      const [lx, ly] = spot(place, radius + small + 8);
      const anchor = Math.abs(lx - middle) < 12 ? "middle" : lx > middle ? "start" : "end";
      nodes.push(svg("text", { class: "ring-label", x: lx, y: ly + (ly < middle - 12 ? -2 : 9), "text-anchor": anchor }, edge.call.op),
        svg("text", { class: "ring-label faint", x: lx, y: ly + (ly < middle - 12 ? -15 : 22), "text-anchor": anchor }, edge.call.axis || "group"));
    }
  }
  const told = `Cycle: ${shown.slice(0, 20).map((edge) => `${edge.rank} waits for ${edge.waits_for}`).join(", ")}${edges.length > 20 ? " and so on" : ""}`;
  return svg("svg", { class: "ring", viewBox: `-40 0 ${size + 80} ${size}`, role: "img", "aria-label": told },
    svg("defs", {}, svg("marker", { id: "head", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0 10 5 0 10z", class: "arrow-head" }))),
    arrows, nodes);
}

function arrow([x1, y1], [x2, y2], gap, bent, own) {
  if (own) return svg("path", { class: "arrow", d: `M${x1 - gap} ${y1} C${x1 - 60} ${y1 - 60} ${x1 + 60} ${y1 - 60} ${x1 + gap} ${y1}`, "marker-end": "url(#head)" });
  const length = Math.hypot(x2 - x1, y2 - y1);
  const [ux, uy] = [(x2 - x1) / length, (y2 - y1) / length];
  // Two ranks that wait for each other get two arcs instead of one line.
  const bow = bent ? 46 : Math.min(18, length * 0.1);
  const [cx, cy] = [(x1 + x2) / 2 + uy * bow, (y1 + y2) / 2 - ux * bow];
  const away = gap + 3;
  const from = toward(x1, y1, cx, cy, away);
  const to = toward(x2, y2, cx, cy, away);
  return svg("path", { class: "arrow", d: `M${from} Q${cx.toFixed(1)} ${cy.toFixed(1)} ${to}`, "marker-end": "url(#head)" });
}

function toward(x, y, tx, ty, by) {
  const length = Math.hypot(tx - x, ty - y) || 1;
  return `${(x + ((tx - x) / length) * by).toFixed(1)} ${(y + ((ty - y) / length) * by).toFixed(1)}`;
}
