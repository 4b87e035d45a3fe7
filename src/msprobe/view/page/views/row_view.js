// One row with its call: both sides, arguments, match, where the value came from and went, and the stack.

import { sideBySide } from "./answer_view.js";
import { codeOf } from "../code.js";
import { byId, dot, el } from "../elements.js";
import { figure, shorten, shortenName, shortPath, title } from "../names.js";
import { goTo } from "../navigate.js";
import { inLanguage } from "../sentences.js";
import { source } from "../source.js";
import { on, set, state } from "../state.js";
import { t, verdictWord } from "../words.js";

const known = new Map();
const LETTER = 7.25;
let turn = 0, traced = false;

export async function detailsOf(call) {
  const key = state.version + ":" + call;
  if (!known.has(key)) {
    if (known.size > 400) known.clear();
    known.set(key, await source.call(call));
  }
  return known.get(key);
}

function short(item) {
  if (!item) return "";
  if (item.dtype === undefined) return title(item.value === undefined ? String(item.type ?? "") : figure(item.value));
  const shape = Array.isArray(item.shape) ? "[" + item.shape.join(", ") + "]" : "";
  return `${String(item.dtype).split(".").pop()} ${shape}` + (item.true !== undefined ? ` ${title(item.true)} true` : item.Norm === undefined || item.Norm === null ? "" : ` norm ${figure(item.Norm)}`);
}

function lookOf(one) {
  return one.role || (one.verdict === "pass" ? "pass" : one.verdict === "not_compared" ? "not_compared" : "differs");
}

function link(one) {
  return el("button", { class: "mono", "data-tip": title(one.name), data: { row: one.row }, onclick: () => goTo(one.row) }, dot(lookOf(one)), shortenName(one.name, Math.floor((byId("right").clientWidth - 66) / LETTER)));
}

function argumentsOf(details, two) {
  const lines = details.rows.map((one) => {
    const ours = short(one.target), theirs = short(one.golden), mark = two && ours !== theirs ? "mono changed" : "mono";
    const name = el("button", { class: "mono", "data-tip": title(one.slot), onclick: () => set("row", { row: one.row }), "aria-pressed": String(one.row === state.row) }, dot(lookOf(one)), shorten(one.slot, 34));
    return el("tr", {}, el("td", {}, name), el("td", { class: mark, text: ours }), two ? el("td", { class: mark, text: theirs }) : null);
  });
  const head = el("tr", {}, el("td"), el("th", { scope: "col", text: t("target") }), two ? el("th", { scope: "col", text: t("golden") }) : null);
  return el("table", { class: "arguments" }, el("thead", {}, head), el("tbody", {}, ...lines.slice(0, 200)));
}

function frame(one) {
  return el("div", { class: "frame mono wrap" + (one.user ? " user" : "") }, one.file ? `${shortPath(one.file, state.answer.directory)}:${one.line} ${one.function}` : one.text, one.file && one.text ? el("div", { text: "  " + one.text }) : null);
}

// The user's frames first; those of libraries folded.
function stackOf(details) {
  const frames = details.stack.target.length ? details.stack.target : details.stack.golden;
  if (!frames.length) return [];
  const own = frames.filter((one) => one.user), others = frames.filter((one) => !one.user);
  return [el("h2", { text: t("stack") }), ...own.map(frame), others.length ? el("details", { open: !own.length }, el("summary", { text: `${others.length} ${t("frames")}` }), ...others.map(frame)) : null];
}

// What each rank has of a row that was put together, ranks as columns; the odd rank is marked.
function shardsOf(row) {
  if (!row.shards?.length) return [];
  const named = (one) => `${t("rank")} ${one.rank}` + (row.shards.some((other) => other.microbatch) ? ` · ${one.microbatch}` : "") + (one.odd ? " ◆" : "");
  const cell = (one, text) => el("td", { class: one.odd ? "mono changed" : "mono", text });
  const head = el("tr", {}, el("td"), ...row.shards.map((one) => el("th", { scope: "col", class: one.odd ? "introduced" : "", "data-tip": title(one.name), text: named(one) })));
  const lines = ["shape", "Max", "Min", "Mean", "Norm"].filter((key) => row.shards.some((one) => one.item?.[key] !== undefined)).map((key) =>
    el("tr", {}, el("th", { scope: "row", text: key.toLowerCase() }), ...row.shards.map((one) => cell(one, shardText(one.item, key)))));
  return [el("h2", { text: t("ranks") }), el("p", { class: "dim", text: title(row.merged) }), el("div", { class: "wide" }, el("table", { id: "shards" }, el("thead", {}, head), el("tbody", {}, ...lines)))];
}

function shardText(item, key) {
  const value = key === "shape" ? item?.local_shape ?? item?.shape : item?.[key];
  if (value === undefined || value === null) return "";
  return Array.isArray(value) ? "[" + value.join(", ") + "]" : figure(value);
}

function traceOf(row) {
  if (!row.trace) return [];
  const button = el("button", { id: "trace", text: t("trace") + " (b)", "aria-expanded": String(traced), onclick: () => { traced = !traced; render(); } });
  const path = row.trace.path.map(link);
  return traced ? [button, el("div", { class: "links", id: "path" }, ...path), el("div", { class: "dim", text: t(row.trace.end) })] : [button];
}

function matchOf(details) {
  const lines = [[t("matching"), `${details.how} (${t("confidence")} ${figure(details.confidence)})`], [t("target"), details.target || "–"], [t("golden"), details.golden || "–"]];
  if (details.before.length) lines.push([t("unfolded"), details.before.join(", ")]);
  return el("table", {}, el("tbody", {}, ...lines.map(([key, text]) => el("tr", {}, el("th", { scope: "row", text: key }), el("td", { class: "mono", text: title(text) })))));
}

function measuredOf(row) {
  const pairs = [[t("relative"), row.distance], [t("tolerance"), row.tolerance], ...Object.entries(row.metrics || {}).map(([key, value]) => [key.replaceAll("_", " "), value])];
  return el("table", {}, el("tbody", {}, ...pairs.filter(([key, value]) => value !== null && value !== undefined && !(key === "first special" && value < 0)).map(([key, value]) => el("tr", {}, el("th", { scope: "row", text: key }), el("td", { class: "mono", text: figure(value) })))));
}

function buttons(row) {
  const chosen = state.picks.has(state.row);
  return el("div", { class: "buttons" },
    row.tensor ? el("button", { id: "open_tensor", text: t("open_tensor") + " (o)", onclick: () => set("tab", { tab: "tensor" }) }) : null,
    el("button", { id: "pick", "aria-pressed": String(chosen), text: (chosen ? "✓ " + t("collected") : t("collect")) + " (x)", onclick: togglePick }));
}

export function togglePick() {
  if (state.row < 0) return;
  state.picks.has(state.row) ? state.picks.delete(state.row) : state.picks.add(state.row);
  set("picks", {});
}

export function toggleTrace() {
  traced = !traced;
  render();
}

async function render() {
  const mine = ++turn, box = byId("right"), { table, row } = state;
  box.setAttribute("aria-label", t("tab.rows"));
  if (row < 0 || !table) { box.replaceChildren(el("p", { class: "dim", text: t("choose") })); return; }
  let details;
  try { details = await detailsOf(table.rows.call[row]); } catch (error) { details = null; box.replaceChildren(el("p", { text: error.message })); if (mine !== turn) return; return; }
  if (mine !== turn) return;
  const look = table.look(row), name = table.name(row), two = state.answer.golden !== null;
  const head = [el("h2", { class: "first mono wrap", id: "row_name", text: title(name) }), el("div", {}, dot(look), [verdictWord(look, state.answer.kind), inLanguage(table.reason(row))].filter(Boolean).join(" · "))];
  const one = details && details.rows.find((other) => other.row === row);
  if (!one) { box.replaceChildren(...head, el("p", { class: "dim", text: t("no_details") })); return; }
  const flow = [];
  if (one.from?.length) flow.push(el("h2", { text: t("came") }), el("div", { class: "links", id: "came" }, ...one.from.map(link)));
  if (one.to?.length) flow.push(el("h2", { text: t("went") }), el("div", { class: "links", id: "went" }, ...one.to.map(link)));
  box.replaceChildren(...[...head, one.cause ? el("div", { class: "wrap", text: `${t("follows")} ${title(one.cause)}` }) : null, buttons(one), ...traceOf(one),
    el("h2", { text: t("statistics") }), sideBySide(one, two), ...shardsOf(one), el("h2", { text: t("arguments") }), argumentsOf(details, two),
    ...(two ? [el("h2", { text: t("matching") }), matchOf(details)] : []), ...flow,
    ...(one.distance !== null || one.metrics ? [el("h2", { text: t("measured") }), measuredOf(one)] : []),
    details.code ? el("h2", { text: t("source") }) : null, details.code ? codeOf(details.code, render) : null, ...stackOf(details)].filter(Boolean));
}

export function showRow() {
  on("row", () => { byId("right").scrollTop = 0; render(); });
  for (const event of ["language", "data", "picks"]) on(event, render);
}
