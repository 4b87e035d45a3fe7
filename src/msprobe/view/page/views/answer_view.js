// The answer on top: what differs first, the lines of code of both runs, both numbers, and what was compared.

import { argumentOf, codeOf } from "../code.js";
import { byId, dot, el } from "../elements.js";
import { counted, figure, shortPath, title } from "../names.js";
import { goTo } from "../navigate.js";
import { inLanguage } from "../sentences.js";
import { on, set, state } from "../state.js";
import { t, verdictWord } from "../words.js";
import { proofOf } from "./proof_view.js";
import { runsOf } from "./runs_view.js";

const ORDER = ["type", "dtype", "shape", "value", "Max", "Min", "Mean", "Norm", "md5", "requires_grad"];

const HIDDEN = ["value_id", "memory"], DULL = ["type", "requires_grad"]; // never shown; shown in the answer if they differ

export function sideBySide(sides, golden, brief = false) {
  const { target, golden: other } = sides;
  const keys = [...new Set([...ORDER, ...Object.keys(target || {}), ...Object.keys(other || {})])]
    .filter((key) => !HIDDEN.includes(key) && [target, other].some((side) => side && side[key] !== undefined && side[key] !== null))
    .filter((key) => !brief || !DULL.includes(key) || golden && target && other && target[key] !== other[key]);
  const shown = (side, key) => side && side[key] !== undefined && side[key] !== null
    ? title(Array.isArray(side[key]) ? "[" + side[key].join(", ") + "]" : key === "dtype" ? String(side[key]).split(".").pop() : figure(side[key])) : "";
  const missing = (side, other) => golden && !side && other ? el("span", { class: "dim", text: t("absent") }) : "";
  const head = el("tr", {}, el("td"), el("th", { text: t("target"), scope: "col" }), golden ? el("th", { text: t("golden"), scope: "col" }) : null);
  const lines = keys.map((key) => {
    const ours = shown(target, key), theirs = shown(other, key), tip = key === "Order" ? { "data-tip": t("means.order") } : {}, look = golden && ours !== theirs ? "mono changed" : "mono";
    return el("tr", {}, el("th", { text: key.toLowerCase(), scope: "row", ...tip }), el("td", { class: look }, ours || missing(target, other)), golden ? el("td", { class: look }, theirs || missing(other, target)) : null);
  });
  return el("table", { class: "sides" }, el("thead", {}, head), el("tbody", {}, ...lines));
}

function sentenceOf(answer) {
  if (!answer.sentence) return t(answer.verdict);
  if (answer.proof) return inLanguage(answer.sentence);
  const word = answer.kind === "comparison" ? t("origin") : answer.verdict === "same" ? "" : t("found");
  return word + (answer.verdict === "same" ? "" : t("colon")) + inLanguage(answer.sentence);
}

function countsOf(answer) {
  const verdicts = ["pass", "warning", "error", "not_compared"].filter((key) => answer.counts[key] !== undefined);
  const looks = { pass: "pass", warning: "differs mild", error: "differs", not_compared: "not_compared" };
  return el("div", { class: "counts" }, ...verdicts.map((key) => {
    const word = answer.kind === "dump" ? verdictWord(looks[key], "dump") : key === "not_compared" ? t("v.not_compared") : t(key);
    return el("span", {}, dot(looks[key]), word + " " + counted(answer.counts[key]));
  }));
}

const PLACES = ["called", "called_golden"]; // lines of code, which begin with a path

// The name of the row, and the words of the script that give it: not if they are the value itself, which stands below.
function slotOf({ slot, code, sides }) {
  const words = argumentOf(code);
  return words && words.toLowerCase() !== String(sides.target?.value).toLowerCase() ? `${slot} = ${words}` : slot;
}

// Going to the row folds the answer, to leave space for the rows.
export function goToAnswer() {
  set("folded", { folded: true });
  render();
  goTo(state.answer.row);
}

function render() {
  const answer = state.answer, box = byId("answer");
  const heading = answer.golden ? `${title(answer.target)}  ${t("against")}  ${title(answer.golden)}` : title(answer.target);
  const shown = answer.facts.filter(([key]) => !answer.code || !["source", "inside", "made", "model_made"].includes(key));
  const facts = el("dl", {}, ...shown.flatMap(([key, text]) => [el("dt", { text: t(key) }), el("dd", { class: "mono", text: title(key === "source" ? text : PLACES.includes(key) ? shortPath(text, answer.directory) : inLanguage(text)) })]));
  const bad = !["same", "clean", "not_compared", "proved"].includes(answer.verdict);
  const good = ["same", "clean", "proved"].includes(answer.verdict);
  const go = el("button", { id: "go", text: t("go") + " ↵", onclick: goToAnswer });
  const fold = el("button", { id: "fold", "aria-expanded": String(!state.folded), text: state.folded ? t("unfold") : t("fold"), onclick: () => { set("folded", { folded: !state.folded }); render(); byId("fold").focus(); } });
  box.className = state.folded ? "folded" : "";
  box.replaceChildren(
    el("div", { class: "top" }, el("h1", { id: "title", class: "mono wrap", text: heading }), answer.living ? el("span", { class: "pass", id: "living", text: "● " + t("living") }) : null, el("span", { class: "right" }), countsOf(answer), answer.row >= 0 ? go : null, fold),
    runsOf(answer) || "",
    el("div", { class: "box" + (bad ? " bad" : good ? " good" : "") },
      el("div", { class: "sentence", text: title(sentenceOf(answer)) }),
      ...(answer.proof ? [proofOf(answer.proof)] : []), facts, answer.code ? codeOf(answer.code) : el("div"),
      answer.sides ? el("div", {}, el("div", { class: "dim mono wrap", text: title(slotOf(answer)) }), sideBySide(answer.sides, answer.golden !== null, true)) : el("div")));
  if (answer.notes.length && !state.folded)
    box.append(el("details", { open: answer.notes.length < 3 }, el("summary", { text: `${t("notes")} (${answer.notes.length})` }), ...answer.notes.slice(0, 50).map((note) => el("div", { class: "dim wrap", text: title(inLanguage(note)) }))));
}

export function showAnswer() {
  for (const event of ["language", "answer", "data"]) on(event, render);
}
