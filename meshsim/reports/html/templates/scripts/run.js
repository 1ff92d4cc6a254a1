// One run's view, put together from its parts.

const RUNS = new Map();
let timelineShown = null;

function openRun(number) {
  if (!RUNS.has(number)) RUNS.set(number, new RunData(number));
  const run = RUNS.get(number);
  const { head } = run;
  const selection = new Selection(run);
  const facts = [`${plural(head.world_size, "rank")}`, `${head.backend} world`, `seed ${head.seed}`, head.outcome === "not-run" ? "" : seconds(head.duration), run.params && `params ${run.params}`].filter(Boolean);
  const main = byId("run");
  const wasRun = head.outcome !== "not-run";
  timelineShown?.end();
  timelineShown = wasRun ? timelineView(run, selection) : null;
  main.replaceChildren(...[
    el("div", { class: "run-head" }, el("h2", {}, head.topology), el("p", { class: "of" }, head.scenario), el("p", { class: "facts" }, facts.join(" · "))),
    run.complete ? null : el("p", { class: "warning" }, "This page was written by one rank of a job: of the other ranks it knows the verdict only."),
    verdictView(run, selection),
    cycleView(run, selection),
    el("div", { class: head.world_size > 64 ? "one" : "two" }, meshView(run, selection), rankView(run, selection)),
    timelineShown && timelineShown.element,
    wasRun ? linesView(run) : null,
    wasRun ? endsView(run, selection) : null,
  ].filter(Boolean));
  main.scrollTop = 0;
  document.title = `meshsim: ${head.topology} on ${head.backend}, ${head.kind}`;
  // What is at fault is shown first; a passed run starts at rank 0.
  selection.chooseRank(run.verdict.ranks.length ? Math.min(...run.verdict.ranks) : 0, "start");
}

startTheme();
startGrid(openRun);
