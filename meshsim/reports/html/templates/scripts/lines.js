// The lines of the user's code that communicate: how often, and which ranks came there.

const MOST_LINES = 100;

function linesView(run) {
  if (!run.sites.length) return null;
  const found = run.sites.map((site) => ({ site, ops: new Set(), calls: 0, ranks: [] }));
  for (let rank = 0; rank < run.worldSize; rank++) {
    for (const call of run.callsOf(rank, false)) {
      const line = found[call.kind.site];
      if (!line) continue;
      line.ops.add(call.kind.op);
      line.calls++;
      if (line.ranks[line.ranks.length - 1] !== rank) line.ranks.push(rank);
    }
  }
  const shown = found.filter((line) => line.calls).sort((a, b) => (a.site[0] < b.site[0] ? -1 : a.site[0] > b.site[0] ? 1 : a.site[1] - b.site[1]));
  if (!shown.length) return null;
  const rows = shown.slice(0, MOST_LINES).map((line) => {
    const odd = [...run.odd].some((rank) => line.ranks.includes(rank));
    const apart = run.odd.size > 0 && run.odd.size < run.worldSize;
    const only = apart && odd && line.ranks.every((rank) => run.odd.has(rank));
    const without = apart && !odd;
    const note = only ? "only ranks at fault" : without ? "not the ranks at fault" : "";
    return el("tr", { class: note ? "odd" : null },
      el("th", { scope: "row" }, sourceLine(line.site[0], line.site[1], line.site[3], Boolean(note))),
      el("td", {}, [...line.ops].join(", ")),
      el("td", { class: "number" }, line.calls.toLocaleString("en")),
      el("td", {}, line.ranks.length === run.worldSize ? (run.worldSize === 1 ? "0" : `all ${run.worldSize}`) : rankText(line.ranks, 6), note ? el("div", { class: "badge odd" }, `✗ ${note}`) : null));
  });
  const heads = [["line"], ["calls what"], ["calls", "number"], ["ranks"]];
  return section("lines", "Source lines", el("div", { class: "table-scroll tall", tabindex: "0", role: "region", "aria-label": "Source lines" },
    el("table", { class: "calls" }, el("thead", {}, el("tr", {}, heads.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)))), el("tbody", {}, rows)),
    shown.length > MOST_LINES ? el("p", { class: "faint" }, `and ${plural(shown.length - MOST_LINES, "line")} more`) : null));
}
