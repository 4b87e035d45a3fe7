// Starts the page: loads the data, builds the views, and handles the keys.

import { goToAnswer, showAnswer } from "./views/answer_view.js";
import { showCollecting } from "./views/collect_view.js";
import { byId, copy, el, painted, say } from "./elements.js";
import { refilter } from "./filter.js";
import { showMap } from "./views/map_view.js";
import { hasUnmatched, showMatching } from "./views/match_view.js";
import { jump, step } from "./navigate.js";
import { showOrder, strip } from "./views/order_view.js";
import { showRanks } from "./views/ranks_view.js";
import { showRow, togglePick, toggleTrace } from "./views/row_view.js";
import { clearFilters, showRows } from "./views/rows_view.js";
import { showLegend } from "./views/runs_view.js";
import { learn } from "./sentences.js";
import { source } from "./source.js";
import { emit, on, readAddress, set, state } from "./state.js";
import { Table } from "./table_data.js";
import { showTensor } from "./views/tensor_view.js";
import { showTree } from "./views/tree_view.js";
import { showTrends } from "./views/trends_view.js";
import { showTips } from "./tooltip.js";
import { hasChinese, inChinese, switchLanguage, t } from "./words.js";

const TABS = { rows: "rows_box", tensor: "tensor", trends: "trends", ranks: "ranks_box", match: "match", collect: "collect" };
const PULSE = 2000, SLOW_PULSE = 8000; // a run may be between two steps: nothing is unfinished then

// Only tabs that have something to show. Each keeps its number.
function tabsShown() {
  const { answer, table } = state, kind = answer?.kind;
  if (kind === "watched") return ["trends"];
  const ranks = new Set(table?.units.flatMap((unit) => unit.ranks ?? [unit.rank]));
  const applies = {
    rows: true, tensor: source.live && answer?.tensors, trends: table?.units.length > 1, ranks: ranks.size > 1,
    match: source.live && kind === "comparison" && !answer.proof && (hasUnmatched() || Object.keys(answer.mapping || {}).length > 0), collect: kind !== "check",
  };
  return Object.keys(TABS).filter((name) => applies[name]);
}

function numberOf(name) {
  return state.answer?.kind === "watched" ? 1 : Object.keys(TABS).indexOf(name) + 1;
}

function paintTabs() {
  const bar = byId("tabs"), buttons = tabsShown().map((name) => el("button", { role: "tab", id: "tab_" + name, "aria-selected": String(state.tab === name), "aria-controls": TABS[name], text: `${numberOf(name)} ${t("tab." + name)}` + (name === "collect" && state.picks.size ? ` (${state.picks.size})` : ""), onclick: () => set("tab", { tab: name }) }));
  bar.replaceChildren(...buttons);
  byId("tools").replaceChildren(
    el("button", { id: "copy_link", text: t("link"), onclick: copyLink }), el("button", { id: "theme", text: t("theme"), onclick: switchTheme }),
    el("button", { id: "language", text: t("language"), onclick: language }), el("button", { id: "keys", text: t("help") + " ?", onclick: showHelp }));
  for (const [name, id] of Object.entries(TABS)) byId(id).hidden = name !== state.tab;
}

async function copyLink() {
  say(t(await copy(location.href) ? "copied" : "not_copied"));
}

function switchTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("msprobe.theme", root.dataset.theme); } catch { /* kept for this page only */ }
  emit("theme");
  emit("size");
}

function language() {
  switchLanguage();
  emit("language");
  if (inChinese() && !hasChinese()) say(t("no_font"));
}

function showHelp() {
  const keys = [["Enter", "k.enter"], ["n", "k.n"], ["p", "k.p"], ["/", "k.slash"], ["↑ ↓ ← →", "k.arrows"], ["x", "k.x"], ["b", "k.b"], ["o", "k.o"], ["m", "k.m"], ["1 – 6", "k.digits"], ["c", "k.c"], ["d", "k.d"], ["l", "k.l"], ["Esc", "k.escape"]];
  const dialog = byId("help");
  dialog.setAttribute("aria-label", t("help"));
  dialog.replaceChildren(el("table", {}, el("tbody", {}, ...keys.map(([key, text]) => el("tr", {}, el("td", {}, el("kbd", { text: key })), el("td", { text: t(text) }))))), el("button", { text: t("close"), onclick: () => dialog.close() }));
  dialog.showModal();
}

function keyPressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const focus = document.activeElement, typing = focus && (focus.tagName === "INPUT" && focus.type !== "checkbox" || focus.tagName === "TEXTAREA" || focus.tagName === "SELECT");
  if (event.key === "Escape") { if (typing) focus.blur(); clearFilters(); return; }
  if (typing && !(focus.id === "search" && event.key === "Enter")) return;
  if (event.key === "Enter" && focus && (focus.tagName === "BUTTON" || focus.tagName === "A" || focus.tagName === "SUMMARY")) return;
  const tabs = tabsShown(), actions = {
    Enter: () => { if (focus?.id === "search") { focus.blur(); if (state.shown.length) set("row", { row: state.shown[0] }); } else goToAnswer(); },
    n: () => jump(1) || say(t("no_more")), p: () => jump(-1) || say(t("no_more")), "/": () => { set("tab", { tab: "rows" }); byId("search")?.focus(); },
    ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(20), PageUp: () => step(-20),
    x: togglePick, b: toggleTrace, o: () => { if (tabs.includes("tensor")) set("tab", { tab: "tensor" }); else say(t(source.live ? "no_tensor" : "tensor_file")); }, c: copyLink, d: switchTheme, l: language, "?": showHelp,
    m: () => byId("tree").querySelector("[tabindex='0']")?.focus(),
  };
  const wanted = tabs.find((name) => String(numberOf(name)) === event.key);
  const action = wanted ? () => set("tab", { tab: wanted }) : actions[event.key];
  if (!action || (event.key.startsWith("Arrow") && focus?.closest("[role=tree], pre, #right, #heat"))) return;
  event.preventDefault();
  action();
}

function edges() {
  const main = document.querySelector("main");
  for (const [id, side, sign] of [["left_edge", "left", 1], ["right_edge", "right", -1]]) {
    const edge = byId(id), apply = (share) => {
      const kept = Math.max(8, Math.min(45, share));
      main.style.setProperty("--" + side, kept + "%");
      edge.setAttribute("aria-valuenow", Math.round(kept));
      emit("size");
    };
    edge.setAttribute("aria-label", t("resize"));
    edge.onpointerdown = (event) => {
      edge.setPointerCapture(event.pointerId);
      edge.onpointermove = (move) => apply((side === "left" ? move.clientX : innerWidth - move.clientX) / innerWidth * 100);
      edge.onpointerup = () => { edge.onpointermove = null; };
    };
    edge.onkeydown = (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      apply(+edge.getAttribute("aria-valuenow") + (event.key === "ArrowRight" ? 2 : -2) * sign);
      event.preventDefault();
      event.stopPropagation();
    };
  }
}

async function load() {
  const answer = await source.answer();
  learn(answer.chinese);
  Object.assign(state, { answer, version: answer.version });
  document.body.dataset.kind = answer.kind;
  if (state.table === null) {
    paintTabs();
    emit("answer");
    await painted();
  }
  const [head, buffer] = await Promise.all([source.table(), source.columns()]);
  learn(head.chinese);
  const before = state.table, table = new Table(head, buffer, answer.kind === "check" ? -1 : answer.row);
  const row = before && state.row >= 0 ? table.find(before, state.row) : -1;
  const picks = before ? [...state.picks].map((one) => table.find(before, one)).filter((one) => one >= 0) : [];
  Object.assign(state, { table, row, picks: new Set(picks), shown: new Int32Array(0), unit: Math.min(state.unit, table.units.length - 1) });
  emit("data");
  paintTabs();
  refilter();
}

async function follow() {
  try {
    const pulse = await source.pulse();
    if (pulse.version !== state.version) { await load(); say(t("grew")); }
    else if (pulse.living !== state.answer.living) { state.answer.living = pulse.living; emit("answer"); }
    setTimeout(follow, state.answer.living ? PULSE : SLOW_PULSE);
  } catch { say(t("lost")); }
}

function build() {
  byId("tabs").setAttribute("aria-label", "msprobe view");
  byId("middle").append(...Object.entries(TABS).map(([name, id]) => el("div", { id, role: "tabpanel", tabindex: name === "rows" ? null : "0", class: name === "rows" ? "" : "free", "aria-labelledby": "tab_" + name, hidden: name !== state.tab })));
  for (const event of ["tab", "picks", "language"]) on(event, paintTabs); // first: the views measure what is visible
  showAnswer();
  showLegend();
  showTree();
  showMap();
  showOrder();
  showRows(byId("rows_box"), strip);
  showRow();
  showTensor();
  showMatching(load);
  showTrends();
  showRanks();
  showCollecting();
  showTips();
  edges();
  byId("rows_box").append(el("p", { class: "dim", text: t("loading") }));
}

async function start() {
  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try { theme = localStorage.getItem("msprobe.theme") || theme; } catch { /* the system's choice */ }
  document.documentElement.dataset.theme = theme;
  build();
  await load();
  if (state.answer.kind === "watched") set("tab", { tab: "trends" });
  else if (readAddress()) { if (!tabsShown().includes(state.tab)) state.tab = "rows"; emit("filters"); emit("unit"); refilter(); set("tab", {}); set("row", {}); }
  else if (state.answer.row >= 0) set("row", { row: state.answer.row });
  document.addEventListener("keydown", keyPressed);
  addEventListener("resize", () => emit("size"));
  addEventListener("hashchange", () => { if (readAddress()) { emit("filters"); emit("unit"); refilter(); emit("tab"); emit("row"); } });
  document.body.dataset.ready = "yes";
  if (source.live) setTimeout(follow, PULSE);
}

start().catch((error) => { byId("answer").replaceChildren(el("p", { text: `${t("failed")} ${error.message}` })); });
