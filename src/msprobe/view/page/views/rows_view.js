// The table of rows: only the lines on screen exist, and they are reused while scrolling.

import { applyRange, refilter } from "../filter.js";
import { byId, dot, el } from "../elements.js";
import { figure, shorten, shortenName, unitName } from "../names.js";
import { NO_FILTER, placeOf } from "../navigate.js";
import { figures, tipOfRow } from "../row_words.js";
import { inLanguage } from "../sentences.js";
import { on, set, state } from "../state.js";
import { t, verdictWord } from "../words.js";

const HEIGHT = 24, SPARE = 6, LETTER = 7.25, WIDEST = 7.3, LEAST_NAME = 228, LEAST_UNIT = 80;
const COLUMNS = [["verdict", 118], ["unit", LEAST_UNIT], ["name", 420], ["difference", 86], ["target", 86], ["golden", 86], ["reason", 200]];
const widths = Object.fromEntries(COLUMNS);
let pool = [], waiting = false, wanted = -1;

function present() {
  const units = state.table && state.table.units.length > 1, two = state.answer && state.answer.golden !== null;
  return COLUMNS.map(([name]) => name).filter((name) => (name !== "unit" || units) && (name !== "golden" || two) && (name !== "difference" || state.table?.measured));
}

// The longest name of a step and rank has room.
function fitUnits() {
  widths.unit = Math.max(LEAST_UNIT, ...(state.table?.units ?? []).map((unit) => Math.ceil(unitName(unit).length * WIDEST) + 14));
}

function layout() {
  const list = byId("list");
  if (!list) return;
  list.style.setProperty("--columns", present().map((name) => name === "reason" ? `minmax(${widths[name]}px, 1fr)` : widths[name] + "px").join(" "));
}

// The name column takes the remaining width of the window.
function fit() {
  const fixed = present().filter((name) => name !== "name").reduce((sum, name) => sum + widths[name], 0);
  widths.name = Math.max(LEAST_NAME, byId("scroll").clientWidth - fixed - 12);
  document.querySelector(".grip[data-column=name]")?.setAttribute("aria-valuenow", widths.name);
  layout();
}

function header() {
  return el("div", { class: "row head", role: "row" }, ...present().map((name) => {
    const grip = el("span", { class: "grip", role: "separator", "aria-orientation": "vertical", "aria-label": `${t("resize_column")}: ${t(name)}`, "aria-valuenow": widths[name], tabindex: "0", data: { column: name } });
    grip.onpointerdown = (event) => {
      const from = event.clientX, before = widths[name];
      grip.setPointerCapture(event.pointerId);
      grip.onpointermove = (move) => resize(name, before + move.clientX - from, grip);
      grip.onpointerup = () => { grip.onpointermove = null; };
    };
    grip.onkeydown = (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      resize(name, widths[name] + (event.key === "ArrowRight" ? 20 : -20), grip);
      event.preventDefault();
      event.stopPropagation();
    };
    return el("span", { role: "columnheader", class: ["difference", "target", "golden"].includes(name) ? "n" : "" }, t(name), grip);
  }));
}

function resize(name, width, grip) {
  widths[name] = Math.max(50, Math.round(width));
  grip.setAttribute("aria-valuenow", widths[name]);
  layout();
  draw();
}

function lineOf(place) {
  let line = pool[place];
  if (!line) {
    const cells = Object.fromEntries(present().map((name) => [name, el("span", { role: "cell", class: name === "name" ? "mono" : ["difference", "target", "golden"].includes(name) ? "n" : "" })]));
    const mark = dot("pass"), word = document.createTextNode("");
    cells.verdict.append(mark, word);
    const box = el("div", { class: "row", role: "row" }, ...Object.values(cells));
    box.onclick = () => set("row", { row: +box.dataset.row });
    line = pool[place] = { box, cells, mark, word, row: -1 };
  }
  return line;
}

function fill(line, row, at) {
  const { table } = state, { cells, box } = line, look = table.look(row), name = table.name(row);
  box.style.transform = `translateY(${at * HEIGHT}px)`;
  box.className = "row" + (row === state.row ? " picked" : "");
  box.dataset.row = row;
  box.setAttribute("aria-rowindex", at + 2);
  line.mark.className = "dot " + look;
  line.word.data = (state.picks.has(row) ? "✓ " : "") + verdictWord(look, state.answer.kind);
  if (cells.unit) cells.unit.textContent = unitName(table.units[table.unit(row)]);
  cells.name.textContent = shortenName(name, Math.floor((widths.name - 16) / LETTER));
  if (cells.difference) cells.difference.textContent = figure(table.rows.distance[row], 4);
  cells.target.textContent = shorten(figures(row, "target"), 14);
  if (cells.golden) cells.golden.textContent = shorten(figures(row, "golden"), 14);
  const reason = inLanguage(table.reason(row));
  cells.reason.textContent = shorten(reason, 200);
  box.dataset.tip = tipOfRow(row);
}

function draw() {
  const scroll = byId("scroll"), rows = byId("rows");
  if (!scroll || !state.table) return;
  const first = Math.max(0, Math.floor(scroll.scrollTop / HEIGHT) - SPARE);
  const count = Math.min(state.shown.length - first, Math.ceil(scroll.clientHeight / HEIGHT) + 2 * SPARE);
  for (let i = 0; i < count; i++) {
    const line = lineOf(i);
    fill(line, state.shown[first + i], first + i);
    if (!line.box.isConnected) rows.append(line.box);
  }
  for (let i = Math.max(count, 0); i < pool.length; i++) if (pool[i].box.isConnected) pool[i].box.remove();
}

function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function reveal() {
  const at = placeOf(state.row), scroll = byId("scroll");
  if (at < 0) { wanted = state.row; return; }
  wanted = -1;
  const top = at * HEIGHT, low = scroll.scrollTop, room = scroll.clientHeight - 2 * HEIGHT;
  if (top < low || top > low + room - HEIGHT) scroll.scrollTop = Math.max(0, top - room / 2);
}

function shown() {
  byId("rows").style.height = state.shown.length * HEIGHT + "px";
  const zoom = state.range ? ` (${t("zoomed")})` : "";
  byId("count").textContent = `${state.shown.length} ${t("of")} ${state.table.count} ${t("rows")}${zoom}`;
  byId("whole").hidden = !state.range && !state.module && !state.query && state.unit < 0 && !state.introduced;
  byId("none").hidden = state.shown.length > 0;
  byId("none").textContent = state.query ? `${t("none_found")} ${shorten(state.query, 60)}` : t("none_left");
  byId("list").setAttribute("aria-rowcount", state.shown.length + 1);
  if (wanted >= 0 || placeOf(state.row) >= 0) reveal(); else byId("scroll").scrollTop = 0;
  draw();
}

function bar() {
  const kind = state.answer?.kind, words = kind === "dump" ? { pass: t("finite"), error: t("not_finite") } : { pass: t("pass"), warning: t("warning"), error: t("error"), not_compared: t("v.not_compared") };
  const boxes = (state.table?.verdicts || []).map((verdict, at) => words[verdict] ? el("label", {}, el("input", { type: "checkbox", checked: state.verdicts[at], data: { verdict }, onchange: (event) => {
    const verdicts = [...state.verdicts];
    verdicts[at] = event.target.checked;
    change({ verdicts });
  } }), " " + words[verdict]) : null);
  const units = state.table?.units || [];
  const choice = el("select", { id: "unit", "aria-label": t("unit"), onchange: (event) => { change({ unit: +event.target.value }); set("unit", {}); } }, el("option", { value: "-1", text: t("all_units") }), ...units.map((unit, at) => el("option", { value: at, text: unitName(unit), selected: at === state.unit })));
  return el("div", { class: "bar" },
    el("input", { type: "search", id: "search", placeholder: t("search"), title: t("search"), "aria-label": t("search"), value: state.query, oninput: (event) => change({ query: event.target.value }) }),
    units.length > 1 ? choice : null, ...boxes,
    kind === "check" ? null : el("label", {}, el("input", { type: "checkbox", id: "introduced", checked: state.introduced, onchange: (event) => change({ introduced: event.target.checked }) }), " " + t("introduced_only")),
    el("button", { id: "whole", hidden: true, text: t("whole"), onclick: clearFilters }), el("span", { class: "dim", id: "count" }));
}

function change(changes) {
  set("filters", { ...changes, range: null });
  refilter();
}

export function clearFilters() {
  const zoomOnly = state.range !== null;
  if (zoomOnly) { set("filters", { range: null }); applyRange(); return; }
  set("filters", NO_FILTER);
  set("unit", {});
  refilter();
}

export function showRows(holder, strip) {
  const paint = () => {
    pool = [];
    const list = el("div", { id: "list", role: "table", "aria-label": t("tab.rows") }, header(), el("div", { id: "rows", role: "rowgroup" }));
    const none = el("p", { id: "none", class: "dim", hidden: true, role: "status" });
    holder.replaceChildren(bar(), strip.plot, strip.lanes, el("div", { id: "scroll", tabindex: "0", onscroll: later }, list, none));
    if (!state.table) return;
    fit();
    shown();
  };
  on("language", paint);
  on("data", () => { fitUnits(); paint(); });
  on("shown", shown);
  on("row", () => { reveal(); draw(); });
  on("picks", draw);
  on("size", () => { fit(); draw(); });
  on("filters", () => {
    const search = byId("search"), unit = byId("unit"), introduced = byId("introduced");
    if (search && search.value !== state.query) search.value = state.query;
    if (unit) unit.value = state.unit;
    if (introduced) introduced.checked = state.introduced;
    for (const box of document.querySelectorAll("input[data-verdict]")) box.checked = state.verdicts[state.table.verdicts.indexOf(box.dataset.verdict)];
  });
  on("tab", () => { if (state.tab === "rows" && state.table) { fit(); draw(); } });
}

