// The lines of code of both runs: yours, or the library's. Where they differ, what differs is marked.

import { copy, el, say } from "./elements.js";
import { shortPath, title } from "./names.js";
import { state } from "./state.js";
import { t } from "./words.js";

const AROUND = 1, ALONE = 3; // lines around the line, of two runs and of one
let kind = "own"; // or "library"

// The words of a line, each with whether the other line lacks it: [[text, only here], …].
export function marked(ours, theirs) {
  const words = (text) => text.match(/\w+|\s+|[^\w\s]/g) || [], mine = words(ours), other = words(theirs);
  const common = Array.from({ length: mine.length + 1 }, () => new Uint16Array(other.length + 1)); // longest common sequence
  for (let i = mine.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--) common[i][j] = mine[i] === other[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const found = [];
  for (let i = 0, j = 0; i < mine.length;) {
    if (j < other.length && mine[i] === other[j]) { found.push([mine[i++], false]); j++; }
    else if (j < other.length && common[i][j + 1] > common[i + 1][j]) j++;
    else found.push([mine[i++], true]);
  }
  return found;
}

function lineOf(excerpt) {
  return excerpt.lines[excerpt.line - excerpt.first] ?? "";
}

function isSame(one, other) {
  return one.file === other.file && one.line === other.line && one.lines.join("\n") === other.lines.join("\n");
}

// An editor's link only for an absolute path. The scheme is ours; the path is data.
function tools(excerpt) {
  const place = `${excerpt.file}:${excerpt.line}`, isAbsolute = /^(\/|[A-Za-z]:[\\/])/.test(excerpt.file);
  const text = `${place}\n${lineOf(excerpt).trim()}`;
  return [el("button", { class: "small copy_code", text: t("copy_text"), "aria-label": `${t("copy_text")} ${title(place)}`, onclick: async () => say(t(await copy(text) ? "copied" : "not_copied")) }),
    isAbsolute ? el("a", { class: "small", href: "vscode://file" + encodeURI("/" + place.replaceAll("\\", "/").replace(/^\//, "")).replaceAll("#", "%23").replaceAll("?", "%3F"), text: "VS Code" }) : null];
}

function blockOf(excerpt, label, other, around) {
  const from = Math.max(excerpt.first, excerpt.line - around), lines = excerpt.lines.slice(from - excerpt.first, excerpt.line + around + 1 - excerpt.first);
  const indent = Math.min(...lines.filter((line) => line.trim()).map((line) => line.length - line.trimStart().length), 80), digits = String(from + lines.length).length;
  const shown = lines.map((line, at) => {
    const number = from + at, here = number === excerpt.line, text = line.slice(indent), head = String(number).padStart(digits) + "  ";
    const row = el("span", { class: here ? "here" : "" });
    row.style.setProperty("--hang", head.length + "ch");
    if (!here || !other) row.append(head + text);
    else {
      const code = text.trimStart();
      row.append(head + text.slice(0, text.length - code.length), ...marked(code.trimEnd(), lineOf(other).trim()).map(([word, only]) => only && word.trim() ? el("mark", { text: word }) : word));
    }
    return row;
  });
  return el("div", { class: "code" }, el("div", { class: "place" }, label ? el("strong", { text: label + " " }) : null, el("span", { class: "dim mono wrap", "data-tip": title(`${excerpt.file}:${excerpt.line}`), text: title(`${shortPath(excerpt.file, state.answer.directory)}:${excerpt.line}`) }), ...tools(excerpt)),
    el("pre", { class: "excerpt", tabindex: "0" }, ...shown), excerpt.note ? el("div", { class: "dim", text: t(excerpt.note) }) : null);
}

function blocks(code) {
  const sides = ["target", "golden"].map((name) => [name, code[name]?.[kind]]).filter(([, excerpt]) => excerpt);
  const two = state.answer.golden !== null;
  if (sides.length === 2 && isSame(sides[0][1], sides[1][1])) return [blockOf(sides[0][1], t("both_runs"), null, ALONE)];
  return sides.map(([name, excerpt], at) => blockOf(excerpt, two ? t(name) : "", sides[1 - at]?.[1] ?? null, sides.length === 2 ? AROUND : ALONE));
}

// `again` draws what contains the code anew after a tab was chosen.
export function codeOf(code, again) {
  const kinds = ["own", "library"].filter((one) => ["target", "golden"].some((side) => code[side]?.[one]));
  if (!kinds.includes(kind)) kind = kinds[0];
  const tabs = kinds.length > 1 ? el("div", { class: "codetabs" }, ...kinds.map((one) => el("button", { class: "small", "aria-pressed": String(one === kind), data: { code: one }, text: t("code." + one), onclick: () => { kind = one; again(); } }))) : null;
  return el("div", { class: "codes" }, tabs, ...blocks(code));
}
