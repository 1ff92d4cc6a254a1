// One rank's calls as a table, a page of them at a time.

const CALLS_A_PAGE = 200;

function callList(calls, selection) {
  if (!calls.length) return el("p", { class: "faint" }, "This rank made no call.");
  const body = el("tbody");
  const more = el("button", { type: "button", onclick: () => add() });
  let shown = 0;
  const add = () => {
    for (const call of calls.slice(shown, shown + CALLS_A_PAGE)) body.append(callRow(call, selection));
    shown = Math.min(calls.length, shown + CALLS_A_PAGE);
    more.hidden = shown === calls.length;
    more.textContent = `Show more (${(calls.length - shown).toLocaleString("en")} left)`;
  };
  add();
  const heads = ["call", "line", "on", "tensor", "with", "took"];
  return el("div", { class: "table-scroll tall", tabindex: "0", role: "region", "aria-label": "Calls of the rank" },
    el("table", { class: "calls" }, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), body), more);
}

function callRow(call, selection) {
  const took = call.state === "completed" ? seconds(call.finished - call.started) : call.state === "open" ? "never completed" : "did not complete";
  return el("tr", { class: call.state === "completed" ? null : "unfinished" },
    el("th", { scope: "row" }, el("button", { type: "button", class: "call-link", onclick: () => selection.chooseCall(call, "list") }, call.kind.op), ` ${call.number}`),
    el("td", {}, call.site ? sourceLine(call.site[0], call.site[1], call.site[3], false) : el("span", { class: "faint" }, call.where)),
    el("td", { class: "whole" }, call.on), el("td", {}, call.tensor), el("td", {}, call.with), el("td", { class: "whole" }, took));
}
