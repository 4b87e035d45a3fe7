// What is known of the runs, and a legend for every mark.

import { byId, dot, el } from "../elements.js";
import { shorten, title } from "../names.js";
import { on, state } from "../state.js";
import { t, verdictWord } from "../words.js";

const LONGEST = 52, WIDE = 24;
const MARKS = { comparison: ["origin", "introduced", "propagated", "differs", "not_compared", "pass"], dump: ["origin", "introduced", "propagated", "pass"], check: ["introduced", "not_compared", "pass"] };

// One line for each run. What both have in common stands once, what differs is marked on both sides. If there is too
// little room, long texts that both have in common are cut first: the tooltip has them.
export function runsOf(answer) {
  if (!answer.runs.length) return null;
  const names = answer.golden === null ? ["target"] : ["target", "golden"];
  const cell = (fact, at) => {
    const text = fact.texts[at] || "–", both = names.length > 1 && new Set(fact.texts).size === 1;
    if (both && at) return null;
    const gives = !fact.differs && text.length > WIDE ? " gives" : "";
    return el("td", { class: "mono" + (fact.differs ? " changed" : gives), rowspan: both ? names.length : null, "data-tip": title(`${t("run." + fact.key)}: ${text}`) }, el("span", { class: "dim", text: t("run." + fact.key) + " " }), shorten(text, LONGEST));
  };
  const lines = names.map((name, at) => el("tr", {}, el("th", { scope: "row", text: t(name) }), ...answer.runs.map((fact) => cell(fact, at))));
  return el("div", { class: "wide", id: "runs", role: "region", "aria-label": t("runs"), tabindex: "0" }, el("table", {}, el("tbody", {}, ...lines)));
}

function legend() {
  const box = byId("legend"), kind = state.answer.kind, marks = MARKS[kind];
  box.hidden = !marks;
  if (marks) box.replaceChildren(...marks.map((look) => el("span", { "data-tip": t("means." + (kind === "comparison" ? "" : kind + ".") + look) }, dot(look), verdictWord(look, kind))));
}

export function showLegend() {
  for (const event of ["answer", "data", "language"]) on(event, legend);
}
