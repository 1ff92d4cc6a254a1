// Making elements. Texts go in as text nodes only: nothing here reads markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, of] of Object.entries(value)) element.style.setProperty(key, of);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h3", { id: `${id}-title` }, title), ...children);
}

function choice(label, options, value, changed) {
  const select = el("select", { onchange: (event) => changed(event.target.value) },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", { class: "choice" }, label, " ", select);
}

function announce(text) {
  byId("announce").textContent = text;
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const fileName = (path) => path.split(/[\\/]/).pop();

function seconds(value) {
  const units = [[1, "s", 1], [1e-3, "ms", 1e3], [0, "µs", 1e6]];
  const [, unit, factor] = units.find(([least]) => value >= least);
  return `${Number((value * factor).toPrecision(3))} ${unit}`;
}

// 0, 1, 2 for a few ranks, 0-510, 512-1023 for many.
function rankText(ranks, most = 12) {
  const spans = [];
  for (const rank of ranks) {
    const last = spans[spans.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  const texts = spans.flatMap(([a, b]) => (a === b ? [`${a}`] : b === a + 1 ? [`${a}`, `${b}`] : [`${a}-${b}`]));
  return texts.length > most ? `${texts.slice(0, most).join(", ")}, and ${texts.length - most} more` : texts.join(", ");
}

const named = (ranks) => `rank${ranks.length === 1 ? "" : "s"} ${rankText(ranks)}`;

// What a floating note says about the thing under the pointer.
function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { innerWidth: width, innerHeight: height } = window;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 18 + tip.offsetHeight > height ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
