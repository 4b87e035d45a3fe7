// Steps by ranks by targets: a heatmap, and the curve of what is clicked. For comparisons, dumps and watched runs.

import { byId, el } from "../elements.js";
import { cellAt, drawCurves, drawHeat, inkOf } from "../heat.js";
import { title } from "../names.js";
import { source } from "../source.js";
import { on, state } from "../state.js";
import { t } from "../words.js";

const MOST = 400;
let picked = -1, watched = null, statistic = "", rank = 0, shown = null, turn = 0;

// The largest difference (of a single dump: the norm of the last output) of each module in each unit.
function ofTable() {
  const { table } = state, places = new Map(), units = table.units.length, values = [];
  for (let i = 0; i < table.count; i++) {
    const call = table.rows.call[i], module = table.call.target_module[call] || table.call.golden_module[call];
    if (!places.has(module)) { places.set(module, values.length); values.push(new Array(units).fill(null)); }
    const line = values[places.get(module)], unit = table.call.unit[call], one = table.measured ? table.rows.distance[i] : Math.abs(table.rows.target[i]);
    if (one === one && (line[unit] === null || one > line[unit])) line[unit] = one;
  }
  const worst = [...places].map(([module, at]) => ({ name: table.texts[module] || t("model"), line: values[at], top: Math.max(...values[at].map((one) => one ?? 0)) }));
  const lines = table.measured && worst.length > 60 ? worst.filter((one) => one.top > 0) : worst;
  return { names: lines.slice(0, MOST).map((one) => one.name), columns: table.units.map((unit) => unit.label), value: (y, x) => lines[y].line[x], lines };
}

function curvesOfTable(y) {
  const { table } = state, ranks = new Map();
  table.units.forEach((unit, at) => {
    const key = unit.rank ?? 0, value = shown.lines[y].line[at];
    if (!ranks.has(key)) ranks.set(key, { rank: key, side: "target", steps: [], values: [] });
    if (value !== null) { ranks.get(key).steps.push(unit.step ?? at); ranks.get(key).values.push(value); }
  });
  return [...ranks.values()].filter((line) => line.steps.length);
}

async function curvesOfWatched(y) {
  const name = shown.names[y], target = watched.targets.find((one) => one.label === name);
  if (source.live && target) return source.curve(target.kind, target.name, statistic);
  return [{ rank, side: "target", steps: shown.columns, values: shown.columns.map((_, x) => shown.value(y, x)) }];
}

async function showCurve(y) {
  const mine = ++turn;
  picked = y;
  const lines = watched ? await curvesOfWatched(y) : curvesOfTable(y);
  if (mine !== turn || !byId("curve")) return;
  byId("curve_name").textContent = `${t("curve")}: ${title(shown.names[y])}`;
  lines.forEach((line, at) => { line.ink = inkOf(at); });
  drawCurves(byId("curve"), lines);
  byId("curve_legend").replaceChildren(...lines.map((line) => {
    const key = el("i", { class: "key" });
    key.style.background = line.ink;
    return el("span", {}, key, `${t("rank")} ${line.rank}${line.side === "golden" ? " " + t("golden") : ""}`);
  }));
  drawHeat(byId("heat"), { ...shown, picked });
}

function alarmsOf() {
  if (!watched?.alarms.length) return [];
  const lines = watched.alarms.slice(0, 100).map((one) => el("tr", {}, el("td", { text: one.step }), el("td", { text: one.rank }), el("td", {}, el("button", { class: "mono", text: title(one.target), onclick: () => { const y = shown.names.indexOf(one.target); if (y >= 0) showCurve(y); } })), el("td", { text: title(one.sentence) })));
  return [el("h2", { text: `${t("alarms")} (${watched.alarms.length})` }), el("table", { id: "alarms" }, el("thead", {}, el("tr", {}, ...["step", "rank", "target", "reason"].map((key) => el("th", { scope: "col", text: t(key) })))), el("tbody", {}, ...lines))];
}

async function render() {
  if (state.tab !== "trends" || !state.answer) return;
  const box = byId("trends"), controls = [];
  if (state.answer.watched) {
    watched = await source.trends();
    statistic = watched.statistics.includes(statistic) ? statistic : watched.statistics[0] || "";
    const matrix = await source.matrix(statistic, rank);
    shown = { names: matrix.labels, columns: matrix.steps, value: (y, x) => matrix.values[y][x] };
    controls.push(el("label", {}, t("statistic") + " ", el("select", { id: "statistic", onchange: (event) => { statistic = event.target.value; picked = -1; render(); } }, ...watched.statistics.map((name) => el("option", { text: name, selected: name === statistic })))));
    if (watched.ranks.length > 1) controls.push(el("label", {}, t("rank") + " ", el("select", { id: "rank", onchange: (event) => { rank = +event.target.value; render(); } }, ...watched.ranks.map((number, at) => el("option", { value: at, text: number ?? 0, selected: at === rank })))));
  } else {
    if (!state.table || state.table.units.length < 2) { box.replaceChildren(el("p", { text: t("no_trends") })); return; }
    shown = ofTable();
    const row = state.answer.row;
    if (picked < 0 && row >= 0) picked = shown.names.indexOf(state.table.module(state.table.rows.call[row]));
  }
  const caption = state.answer.watched ? t("heat_watched") : state.table.measured ? t("heat_of") : t("heat_norm");
  const heat = el("canvas", { id: "heat", role: "img", tabindex: "0", "aria-label": caption, onclick: (event) => { const cell = cellAt(event.target, event, shown.names, shown.columns); if (cell) showCurve(cell.y); } });
  heat.onkeydown = (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    showCurve(Math.max(0, Math.min(shown.names.length - 1, picked + (event.key === "ArrowDown" ? 1 : -1))));
    event.preventDefault();
    event.stopPropagation();
  };
  heat.onmousemove = (event) => { const cell = cellAt(heat, event, shown.names, shown.columns); heat.title = cell ? title(`${shown.names[cell.y]} · ${shown.columns[cell.x]} · ${shown.value(cell.y, cell.x) ?? ""}`) : ""; };
  box.replaceChildren(el("div", { class: "bar" }, ...controls), el("h2", { id: "curve_name", text: t("click_heat") }), el("canvas", { id: "curve", role: "img", "aria-label": t("curve") }), el("div", { class: "legend", id: "curve_legend" }), ...alarmsOf(), el("h2", { text: caption }), heat);
  drawHeat(heat, { ...shown, picked });
  if (picked >= 0 && picked < shown.names.length) showCurve(picked);
}

export function showTrends() {
  for (const event of ["tab", "data", "language", "theme", "size"]) on(event, render);
}
