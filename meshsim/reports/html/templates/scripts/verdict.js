// The verdict: what came of the run, who is at fault, what each rank called and where.

const MARKS = { failed: "✗", warned: "!", passed: "✓", "not-run": "–" };

function verdictView(run, selection) {
  const { verdict, head } = run;
  const lines = [el("p", { class: "summary" }, verdict.summary)];
  if (verdict.ranks.length) lines.push(el("p", { class: "who" }, el("span", { class: "badge odd" }, "✗ at fault"), " ", rankButtons(selection, verdict.ranks)));
  if (verdict.waiting.length) lines.push(el("p", { class: "who" }, el("span", { class: "badge late" }, "… waiting"), " ", rankButtons(selection, verdict.waiting)));
  if (verdict.severity === "hazard") lines.push(el("p", {}, "A hazard: gloo passes, NCCL hangs or corrupts."));
  if (verdict.advice && head.outcome === "failed") lines.push(el("p", { class: "advice" }, el("strong", {}, "What to do: "), verdict.advice));
  for (const other of verdict.also || []) lines.push(el("p", {}, el("strong", {}, "Also: "), other.summary));
  for (const warning of verdict.warnings) lines.push(el("p", { class: "warning" }, el("strong", {}, `! ${warning.kind}: `), warning.summary));
  return el("section", { class: `verdict ${head.outcome}`, "aria-labelledby": "verdict-title" },
    el("h3", { id: "verdict-title" }, el("span", { "aria-hidden": "true" }, `${MARKS[head.outcome]} `), verdict.kind),
    lines,
    // A cycle is drawn with the same calls below.
    verdict.cycle && verdict.table ? el("details", {}, el("summary", {}, "What the ranks called"), callTable("", verdict.table)) : callTable("What the ranks called", verdict.table),
    callTable("The other call", verdict.second),
    callTable("Where the lines part", verdict.lines_part),
    missingList(verdict.missing_table),
    failureTexts(verdict.failures));
}

function sourceLine(file, line, text, odd) {
  if (!file) return el("span", { class: "faint" }, "an unknown line");
  return el("span", { class: odd ? "source odd" : "source", title: `${file}:${line}` },
    el("span", { class: "at" }, `${fileName(file)}:${line}`), text ? el("code", {}, text) : null);
}

const MOST_ROWS = 40;

function callTable(title, rows) {
  if (!rows || !rows.length) return null;
  // A mark says something only where it sets rows apart.
  const apart = rows.some((row) => row.odd) && rows.some((row) => !row.odd);
  const columns = [
    ["ranks", (row) => row.ranks],
    ["call", (row) => el("span", {}, el("code", {}, row.op), row.number ? ` number ${row.number}` : "")],
    ["tensor", (row) => (row.names || []).slice(0, 2).join(", ")],
    ["dtype", (row) => row.dtype],
    ["shape", (row) => (row.shapes || []).slice(0, 3).map((shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`).join(", ") + (row.splits ? ` in [${row.splits[0]}] out [${row.splits[1]}]` : "")],
    ["reduce op", (row) => row.reduce_op],
    ["root/peer", (row) => { const other = row.root ?? row.peer; return other === null || other === undefined ? "" : `${other}`; }],
    ["group", (row) => `${row.axis || "group"} (${row.group})`],
    ["line", (row) => sourceLine(row.file, row.line, row.text, apart && row.odd)],
  ].filter(([name, cell]) => name === "line" || rows.some((row) => cell(row) !== ""));
  const body = rows.slice(0, MOST_ROWS).map((row) => el("tr", { class: apart && row.odd ? "odd" : null },
    columns.map(([name, cell], place) => place === 0
      ? el("th", { scope: "row" }, apart && row.odd ? el("span", { class: "badge odd" }, "✗ odd") : null, " ", cell(row))
      : el("td", {}, cell(row)))));
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": title || "What the ranks called" },
    el("table", { class: "calls" }, title ? el("caption", {}, title) : null, el("thead", {}, el("tr", {}, columns.map(([name]) => el("th", { scope: "col" }, name)))), el("tbody", {}, body)),
    rows.length > MOST_ROWS ? el("p", { class: "faint" }, `and ${plural(rows.length - MOST_ROWS, "row")} more`) : null);
}

function missingList(rows) {
  if (!rows || !rows.length) return null;
  return el("div", {}, el("h4", {}, "Ranks that are missing"), el("ul", {}, rows.slice(0, MOST_ROWS).map((row) =>
    el("li", {}, el("strong", {}, /^\d+$/.test(row.ranks) ? `rank ${row.ranks}` : `ranks ${row.ranks}`), ` ${row.text}`,
      row.last_call ? el("div", {}, sourceLine(row.last_call.file, row.last_call.line, row.last_call.text, true)) : null))));
}

function failureTexts(rows) {
  if (!rows || !rows.length) return null;
  const own = rows.filter((row) => !row.peer_lost);
  return el("div", {}, own.slice(0, 5).map((row, place) => el("details", { open: place === 0 },
    el("summary", {}, /^\d+$/.test(row.ranks) ? `Traceback of rank ${row.ranks}` : `Traceback of ranks ${row.ranks}`),
    el("pre", { tabindex: "0" }, row.traceback.trimEnd()))),
  own.length > 5 ? el("p", { class: "faint" }, `${own.length - 5} more kinds of errors; choose a rank to see its own`) : null);
}
