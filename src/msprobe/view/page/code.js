// The lines of code of both runs: what makes the module, yours, and below it the library's that it calls. Where they differ, what differs is
// marked.

import { copy, el, say } from "./elements.js";
import { packagePath, shortPath, title } from "./names.js";
import { state } from "./state.js";
import { t } from "./words.js";

const AROUND = 1, ALONE = 3, ABOVE_LIBRARY = 2; // lines around the line: of two runs, of one, and of one above the library's

// The words of a line, each with whether the other line lacks it: [[text, only here], …].
export function marked(ours, theirs) {
  const words = (text) => text.match(/\d[\d.]*(?:e[+-]?\d+)?(?!\w)|\w+|\s+|[^\w\s]/gi) || [], mine = words(ours), other = words(theirs);
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

function shown({ file }) {
  return packagePath(shortPath(file, state.answer.directory));
}

function isSame(one, other) {
  return shown(one) === shown(other) && one.line === other.line && one.lines.join("\n") === other.lines.join("\n");
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
  const rows = lines.map((line, at) => {
    const number = from + at, here = number === excerpt.line, text = line.slice(indent), head = String(number).padStart(digits) + "  ";
    const row = el("span", { class: here ? "here" : "" });
    row.style.setProperty("--hang", head.length + "ch");
    const code = text.trimStart(), argument = here && excerpt.argument;
    if (!here && other && text.trim() && !other.lines.some((one) => one.trim() === text.trim())) row.append(head, el("mark", { text }));
    else if (argument && !other) {
      const at = text.length - code.length + argument.at, end = at + argument.words.length;
      row.append(head + text.slice(0, at), el("mark", { text: text.slice(at, end) }), text.slice(end));
    } else if (!here || !other) row.append(head + text);
    else {
      row.append(head + text.slice(0, text.length - code.length), ...marked(code.trimEnd(), lineOf(other).trim()).map(([word, only]) => only && word.trim() ? el("mark", { text: word }) : word));
    }
    return row;
  });
  return el("div", { class: "code" }, el("div", { class: "place" }, label ? el("strong", { text: label + " " }) : null, el("span", { class: "dim mono wrap", "data-tip": title(`${excerpt.file}:${excerpt.line}`), text: title(`${shown(excerpt)}:${excerpt.line}`) }), ...tools(excerpt)),
    el("pre", { class: "excerpt", tabindex: "0" }, ...rows), excerpt.note ? el("div", { class: "dim", text: t(excerpt.note) }) : null);
}

// "target: your code"; of one dump, and of what both runs have, only what it is, and only if there is something else.
function labelOf(side, kind, several) {
  const what = several ? t("code." + kind) : "";
  return [side && t(side), what].filter(Boolean).join(t("colon"));
}

function blocks(code, kind, kinds) {
  const several = kinds.length > 1, around = kinds.includes("made") || kinds.includes("model") ? 0 : null;
  const sides = ["target", "golden"].map((name) => [name, code[name]?.[kind]]).filter(([, excerpt]) => excerpt);
  const two = state.answer.golden !== null;
  if (sides.length === 2 && isSame(sides[0][1], sides[1][1])) return [blockOf(sides[0][1], labelOf(several ? "" : "both_runs", kind, several), null, around ?? (several ? ABOVE_LIBRARY : ALONE))];
  const near = sides.length === 2 && lineOf(sides[0][1]).trim() !== lineOf(sides[1][1]).trim() ? AROUND : ALONE; // equal lines: what differs is near them
  return sides.map(([name, excerpt], at) => blockOf(excerpt, labelOf(two ? name : "", kind, several), sides[1 - at]?.[1] ?? null, around ?? near));
}

// The words of the argument that the answer is about, if a line of the target has them.
export function argumentOf(code) {
  return (code?.target?.library ?? code?.target?.own)?.argument?.words;
}

// The lines that make the model and the module, the user's and the library's: each may be the one to repair.
export function codeOf(code) {
  const kinds = ["model", "made", "own", "library"].filter((one) => ["target", "golden"].some((side) => code[side]?.[one]));
  return el("div", { class: "codes" }, ...kinds.flatMap((kind) => blocks(code, kind, kinds)));
}
