// The grid of verdicts: filters, and moving in it by arrow keys with one stop for the Tab key.

function startGrid(open) {
  const cells = [...document.querySelectorAll("a.cell")];
  const rows = () => [...document.querySelectorAll("tr[data-row]:not([hidden])")];
  const inRow = (row) => [...row.querySelectorAll("a.cell:not([hidden])")];

  const stop = (cell) => {
    for (const other of cells) other.tabIndex = -1;
    if (cell) cell.tabIndex = 0;
  };

  const step = (cell, key) => {
    const shown = rows();
    const row = cell.closest("tr");
    const line = inRow(row);
    const at = shown.indexOf(row);
    const column = line.indexOf(cell);
    if (key === "ArrowLeft" || key === "ArrowRight") return line[column + (key === "ArrowRight" ? 1 : -1)];
    const to = { ArrowUp: at - 1, ArrowDown: at + 1, PageUp: Math.max(0, at - 10), PageDown: Math.min(shown.length - 1, at + 10), Home: 0, End: shown.length - 1 }[key];
    if (to === undefined || !shown[to]) return undefined;
    const others = inRow(shown[to]);
    return others[Math.min(column, others.length - 1)];
  };

  document.querySelector("table.grid")?.addEventListener("keydown", (event) => {
    const cell = event.target.closest("a.cell");
    const next = cell && !event.ctrlKey && !event.metaKey && !event.altKey && step(cell, event.key);
    if (!next) return;
    event.preventDefault();
    stop(next);
    next.focus();
  });

  const filter = () => {
    const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = byId("show").value;
    for (const row of document.querySelectorAll("tr[data-row]")) {
      const scenario = row.closest("tbody").querySelector("tr.scenario").textContent;
      for (const cell of row.querySelectorAll("a.cell")) {
        const head = HEADS[cell.dataset.run];
        const text = [scenario, head.topology, head.backend, head.kind, head.world_size, head.summary].join(" ").toLowerCase();
        cell.hidden = (outcome !== "" && cell.dataset.outcome !== outcome) || !words.every((word) => text.includes(word));
      }
      row.hidden = inRow(row).length === 0;
    }
    for (const body of document.querySelectorAll("table.grid tbody")) body.hidden = !body.querySelector("tr[data-row]:not([hidden])");
    const shown = cells.filter((cell) => !cell.hidden);
    byId("none-found").hidden = shown.length > 0;
    if (!shown.some((cell) => cell.tabIndex === 0)) stop(shown[0]);
    announce(`${plural(shown.length, "run")} shown`);
  };
  if (cells.length) {
    byId("find").addEventListener("input", filter);
    byId("show").addEventListener("change", filter);
  }

  const follow = () => {
    const asked = /^#run-(\d+)$/.exec(location.hash);
    const number = asked ? Number(asked[1]) : -1;
    if (HEADS[number]) show(number, true);
  };
  const show = (number, told) => {
    for (const cell of cells) {
      if (Number(cell.dataset.run) === number) {
        cell.setAttribute("aria-current", "true");
        stop(cell);
        cell.scrollIntoView({ block: "nearest" });
      } else cell.removeAttribute("aria-current");
    }
    open(number);
    const head = HEADS[number];
    if (told) announce(`Shown: ${head.topology} on ${head.backend}, ${head.kind}`);
  };
  addEventListener("hashchange", follow);
  if (!HEADS.length) return;
  stop(cells[0]);
  const failed = HEADS.findIndex((head) => head.outcome === "failed");
  if (/^#run-\d+$/.test(location.hash)) follow();
  else show(Math.max(0, failed), false);
}
