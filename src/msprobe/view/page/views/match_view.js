// Matching by hand: one call of each run without a counterpart; the server judges everything again.

import { byId, el, say } from "../elements.js";
import { shorten, shortenName, title } from "../names.js";
import { goTo } from "../navigate.js";
import { source } from "../source.js";
import { on, state } from "../state.js";
import { t } from "../words.js";

const MOST = 300, LETTER = 7.25;
const chosen = { target: "", golden: "" }, filters = { target: "", golden: "" };
let reload = null, path = "";

function unmatched(side) {
  const { table } = state, word = table.texts.indexOf("unmatched"), names = new Set();
  for (let c = 0; c < table.calls; c++)
    if (table.call.how[c] === word && table.call[side][c]) names.add(table.texts[table.call[side][c]]);
  return [...names];
}

export function hasUnmatched() {
  return state.table !== null && ["target", "golden"].some((side) => unmatched(side).length);
}

function listOf(side) {
  const names = unmatched(side).filter((name) => name.toLowerCase().includes(filters[side].toLowerCase()));
  const room = Math.floor((byId("middle").clientWidth / 2 - 50) / LETTER), lines = names.slice(0, MOST).map((name) => el("li", {}, el("button", { class: "mono", "data-tip": title(name), data: { name: title(name) }, "aria-pressed": String(chosen[side] === name), text: shortenName(name, room), onclick: () => { chosen[side] = chosen[side] === name ? "" : name; render(); } })));
  const search = el("input", { type: "search", id: "filter_" + side, "aria-label": `${t("filter")}: ${t("match_" + side)}`, placeholder: t("filter"), value: filters[side], oninput: (event) => { filters[side] = event.target.value; render(); byId("filter_" + side).focus(); } });
  return el("div", {}, el("h2", { text: `${t("match_" + side)} (${names.length})` }), search, el("ul", { id: "unmatched_" + side }, ...lines));
}

async function send(target, golden) {
  try {
    await source.send("/api/match", { target, golden });
    chosen.target = chosen.golden = "";
    await reload();
    say(t("judged"));
    if (golden !== null) showPair(target);
  } catch (error) { say(error.message); }
}

function showPair(target) {
  const { table } = state;
  for (let c = 0; c < table.calls; c++)
    if (table.texts[table.call.target[c]] === target) { const first = table.call.first[c]; if (table.end(c) > first) goTo(first); return; }
}

async function save() {
  try {
    path = (await source.send("/api/mapping", {})).path;
    render();
  } catch (error) { say(error.message); }
}

function render() {
  const box = byId("match"), { answer, table } = state;
  if (!table) return;
  if (answer.kind !== "comparison" || !source.live) { box.replaceChildren(el("p", { text: t(source.live ? "match_two" : "match_file") })); return; }
  const pairs = Object.entries(answer.mapping || {});
  const command = `msprobe compare ${answer.target} ${answer.golden} -dm ${path}`;
  box.replaceChildren(
    el("div", { class: "bar" }, el("button", { id: "do_match", disabled: !chosen.target || !chosen.golden, text: t("do_match"), onclick: () => send(chosen.target, chosen.golden) }),
      el("button", { id: "save_mapping", disabled: !pairs.length, text: t("save"), onclick: save }), path ? el("span", { class: "mono wrap", id: "saved", text: `${t("saved")} ${path}` }) : null),
    path ? el("pre", { tabindex: "0", text: command }) : "",
    pairs.length ? el("div", {}, el("h2", { text: t("matched") }), ...pairs.map(([target, golden]) => el("div", { class: "mono wrap" }, `${shorten(target, 90)} → ${shorten(golden, 90)} `, el("button", { text: t("remove"), onclick: () => send(target, null) })))) : "",
    el("p", { class: "dim", text: t("match_how") }),
    el("div", { class: "lists" }, listOf("target"), listOf("golden")));
}

export function showMatching(again) {
  reload = again;
  for (const event of ["data", "language", "size"]) on(event, render);
}
