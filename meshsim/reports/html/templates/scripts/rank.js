// What one rank did, printed and returned; and how all ranks ended.

function rankView(run, selection) {
  const body = el("div", { class: "rank-body" }, el("p", { class: "faint" }, "Choose a rank in the mesh, the timeline or the verdict."));
  const title = el("h3", { id: "rank-title" }, "Rank");
  const show = () => {
    title.textContent = `Rank ${selection.rank}`;
    body.replaceChildren(...rankParts(run, selection));
  };
  selection.on("rank", show);
  return el("section", { id: "rank", "aria-labelledby": "rank-title" }, title, body);
}

function rankParts(run, selection) {
  const { rank } = selection;
  const report = run.ranks[rank];
  const text = (number) => (number === undefined ? "" : run.texts[number]);
  const role = run.role(rank);
  const facts = [["place", run.place(rank)]];
  if (report) {
    const how = [report.state, report.signal, report.exit_code !== undefined && `exit code ${report.exit_code}`, report.peer_lost && "a consequence of another rank's end"].filter(Boolean).join(", ");
    facts.push(["ended", `${how}, after ${seconds(report.ended)}`]);
    if (report.error !== undefined) facts.push(["error", text(report.error)]);
    if (report.value !== undefined) facts.push(["returned", el("code", {}, text(report.value))]);
  }
  for (const axis of run.mesh.axes) facts.push([`${axis.name} group`, rankText(axis.members[axis.groups[rank]], 16)]);
  const texts = report ? [["Traceback", report.traceback, true], ["Standard output", report.stdout, true], ["Standard error", report.stderr, true], ["Stack where it stood", report.stack, false]] : [];
  return [
    role ? el("p", {}, el("span", { class: `badge ${role === "waiting" ? "late" : "odd"}` }, role === "waiting" ? "… waiting" : "✗ at fault")) : null,
    el("dl", {}, facts.filter(([, value]) => value !== "").map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...texts.filter(([, number]) => number !== undefined).map(([name, number, open]) => el("details", { open }, el("summary", {}, name), el("pre", { tabindex: "0" }, text(number).trimEnd()))),
    el("h4", {}, "Its calls"),
    callList(run.callsOf(rank, false), selection),
  ].filter(Boolean);
}

function endsView(run, selection) {
  if (!run.ends.length) return null;
  const rows = run.ends.slice(0, 60).map((end) => {
    const ranks = unpack(end.ranks);
    const odd = ranks.some((rank) => run.odd.has(rank));
    return el("tr", {}, el("th", { scope: "row" }, rankButtons(selection, ranks, 8)),
      el("td", { class: "whole" }, odd ? el("span", { class: "badge odd" }, "✗") : null, " ", end.state), el("td", { class: "what" }, end.what), el("td", {}, end.where));
  });
  const heads = [["ranks"], ["state"], ["what"], ["line"]];
  return section("ends", "How the ranks ended", el("div", { class: "table-scroll tall", tabindex: "0", role: "region", "aria-label": "How the ranks ended" },
    el("table", { class: "calls" }, el("thead", {}, el("tr", {}, heads.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)))), el("tbody", {}, rows)),
    run.ends.length > 60 ? el("p", { class: "faint" }, `and ${plural(run.ends.length - 60, "row")} more`) : null));
}
