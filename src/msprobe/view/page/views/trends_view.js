// Steps by ranks by targets: a heatmap, and the curve of what is clicked. For comparisons, dumps and watched runs.

import { byId, el } from "../elements.js";
import { cellAt, drawCurves, drawHeat, heatBar, inkOf } from "../heat.js";
import { figure, title } from "../names.js";
import { inLanguage, learn } from "../sentences.js";
import { source } from "../source.js";
import { on, state } from "../state.js";
import { hideTip, tipOf } from "../tooltip.js";
import { t } from "../words.js";

const MOST = 400, ALL = "*";
let picked = -1, watched = null, statistic = "", kind = "", rank = 0, shown = null, turn = 0, wanted = null, begun = false, drawn = 0;

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
  const target = watched.targets.find((one) => one.label === shown.labels[y]);
  if (source.live && target) return source.curve(target.kind, target.name, statistic);
  return [{ rank: watched.ranks[rank] ?? 0, side: "target", steps: shown.columns, values: shown.columns.map((_, x) => shown.value(y, x)) }];
}

function nameOf(line) {
  return `${t("rank")} ${line.rank}${line.side === "golden" ? " " + t("golden") : ""}`;
}

async function showCurve(y) {
  const mine = ++turn;
  picked = y;
  const lines = watched ? await curvesOfWatched(y) : curvesOfTable(y), canvas = byId("curve");
  if (mine !== turn || !canvas) return;
  const label = watched ? statistic : t(state.table.measured ? "relative" : "norm"), marks = watched ? watched.alarms.filter((one) => one.target === shown.labels[y]).map((one) => one.step) : [];
  byId("curve_name").textContent = `${t("curve")}: ${title(watched ? shown.labels[y] : shown.names[y])}`;
  lines.forEach((line, at) => { line.ink = inkOf(at); });
  const stepAt = drawCurves(canvas, lines, marks, label);
  tipOf(canvas, (event) => {
    const step = stepAt(event), found = lines.map((line) => [line, line.values[line.steps.indexOf(step)]]).filter(([, one]) => one !== undefined);
    return found.length ? [`${t("step")} ${step}`, ...found.map(([line, one]) => `${nameOf(line)}: ${figure(one)}`)].join("\n") : "";
  });
  const keys = lines.map((line) => [line.ink, nameOf(line)]);
  byId("curve_legend").replaceChildren(...[...keys, ...(marks.length ? [["var(--introduced)", t("alarm")]] : [])].map(([ink, text]) => {
    const key = el("i", { class: "key" });
    key.style.background = ink;
    return el("span", {}, key, text);
  }));
  drawHeat(byId("heat"), { ...shown, picked, axes: axesOf() });
}

function axesOf() {
  return watched ? [t(kind ? "module" : "target_axis"), t("step")] : [t("module"), t("unit")];
}

// The targets of an alarm have statistics of their own (the loss has only its value): choose one that its target has.
function showAlarm(alarm) {
  const target = targetOf(alarm);
  if (!target) return false;
  if (!target.statistics.includes(statistic)) statistic = target.statistics[0];
  if (kind && kind !== target.kind) kind = "";
  rank = Math.max(0, watched.ranks.findIndex((one) => (one ?? 0) === alarm.rank));
  wanted = target.label;
  render();
  return true;
}

// An alarm about all gradients has no target of its own: the first gradient shows it.
function targetOf(alarm) {
  const { targets } = watched, [kind] = alarm.target.split("/");
  return targets.find((one) => one.label === alarm.target) || (alarm.target.endsWith("/" + ALL) ? targets.find((one) => one.kind === kind) : undefined);
}

function alarmsOf() {
  if (!watched?.alarms.length) return [];
  const lines = watched.alarms.slice(0, 100).map((one) => el("tr", {}, el("td", { text: one.step }), el("td", { text: one.rank }), el("td", {}, targetOf(one) ? el("button", { class: "mono", text: title(one.target), onclick: () => showAlarm(one) }) : el("span", { class: "mono", text: title(one.target) })), el("td", { text: title(inLanguage(one.sentence)) })));
  return [el("h2", { text: `${t("alarms")} (${watched.alarms.length})` }), el("table", { id: "alarms" }, el("thead", {}, el("tr", {}, ...["step", "rank", "target", "reason"].map((key) => el("th", { scope: "col", text: t(key) })))), el("tbody", {}, ...lines))];
}

// What is shown before anything was clicked: the first alarm, else the loss.
function chooseFirst() {
  if (begun) return;
  begun = true;
  const first = watched.alarms.find(targetOf), target = first ? targetOf(first) : watched.targets.find((one) => one.label === "loss") || watched.targets[0];
  if (!target) return;
  statistic = target.statistics[0];
  if (first) rank = Math.max(0, watched.ranks.findIndex((one) => (one ?? 0) === first.rank));
  wanted = target.label;
}

async function ofWatched() {
  watched = await source.trends();
  learn(watched.chinese);
  chooseFirst();
  if (!watched.statistics.includes(statistic)) statistic = watched.statistics[0] || "";
  const label = wanted ?? shown?.labels[picked], matrix = await source.matrix(statistic, rank);
  wanted = null;
  if (!kindsOf().includes(kind)) kind = "";
  const rows = matrix.labels.map((one, at) => at).filter((at) => !kind || matrix.labels[at].startsWith(kind + "/")), labels = rows.map((at) => matrix.labels[at]);
  const steps = matrix.steps.map((one, at) => at).filter((at) => rows.some((row) => matrix.values[row][at] !== null)); // some kinds are measured in few steps
  shown = { labels, names: labels.map((one) => kind ? one.slice(kind.length + 1) || t("model") : one), columns: steps.map((at) => matrix.steps[at]), value: (y, x) => matrix.values[rows[y]][steps[x]] };
  picked = labels.length ? Math.max(0, labels.indexOf(label)) : -1;
}

// The kinds of targets that have the chosen number: one of them alone is a picture of modules by steps.
function kindsOf() {
  return [...new Set(watched.targets.filter((one) => one.statistics.includes(statistic) && one.label.startsWith(one.kind + "/")).map((one) => one.kind))];
}

function controls() {
  if (!state.answer.watched) return [];
  const choice = el("label", {}, t("statistic") + " ", el("select", { id: "statistic", onchange: (event) => { statistic = event.target.value; render(); } }, ...watched.statistics.map((name) => el("option", { text: name, selected: name === statistic }))));
  const ranks = watched.ranks.length > 1 ? el("label", {}, t("rank") + " ", el("select", { id: "rank", onchange: (event) => { rank = +event.target.value; render(); } }, ...watched.ranks.map((number, at) => el("option", { value: at, text: number ?? 0, selected: at === rank })))) : null;
  const kinds = el("label", {}, t("kind") + " ", el("select", { id: "kind", onchange: (event) => { kind = event.target.value; render(); } }, ...["", ...kindsOf()].map((name) => el("option", { value: name, text: name || t("all_kinds"), selected: name === kind }))));
  return [choice, kinds, ranks];
}

function heatmap(caption) {
  const heat = el("canvas", { id: "heat", role: "img", tabindex: "0", "aria-label": caption, onclick: (event) => { const cell = cellAt(event.target, event, shown.names, shown.columns); if (cell) showCurve(cell.y); } });
  heat.onkeydown = (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    showCurve(Math.max(0, Math.min(shown.names.length - 1, picked + (event.key === "ArrowDown" ? 1 : -1))));
    event.preventDefault();
    event.stopPropagation();
  };
  tipOf(heat, (event) => {
    const cell = cellAt(heat, event, shown.names, shown.columns), value = cell && shown.value(cell.y, cell.x);
    return cell ? title(`${shown.names[cell.y]}\n${watched ? t("step") + " " : ""}${shown.columns[cell.x]}: ${value === null || value === undefined ? "–" : figure(value)}`) : "";
  });
  return heat;
}

async function render() {
  if (state.tab !== "trends" || !state.answer) return;
  const box = byId("trends"), mine = ++drawn;
  hideTip();
  if (state.answer.watched) await ofWatched();
  else {
    if (!state.table || state.table.units.length < 2) { box.replaceChildren(el("p", { text: t("no_trends") })); return; }
    shown = ofTable();
    const row = state.answer.row;
    if (picked < 0 && row >= 0) picked = shown.names.indexOf(state.table.module(state.table.rows.call[row]));
  }
  if (mine !== drawn) return;
  const caption = state.answer.watched ? kind ? `${t("heat_modules")}: ${kind}, ${statistic}` : t("heat_watched") : state.table.measured ? t("heat_of") : t("heat_norm"), heat = heatmap(caption);
  box.replaceChildren(el("div", { class: "bar" }, ...controls()), el("h2", { id: "curve_name", text: t("click_heat") }), el("canvas", { id: "curve", role: "img", "aria-label": t("curve") }), el("div", { class: "legend", id: "curve_legend" }), ...alarmsOf(), el("h2", { text: caption }), heatBar(shown), heat);
  drawHeat(heat, { ...shown, picked, axes: axesOf() });
  if (picked >= 0 && picked < shown.names.length) await showCurve(picked);
}

export function showTrends() {
  for (const event of ["tab", "data", "language", "theme", "size"]) on(event, render);
}
