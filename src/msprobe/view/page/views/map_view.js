// The model in execution order, one cell for each module: the origin is the red one, what came before it is calm, and
// what came after it fades.

import { byId, colour, drawing, el } from "../elements.js";
import { figure, shorten, title } from "../names.js";
import { on, state } from "../state.js";
import { LOOKS, ORIGIN, PROPAGATED } from "../table_data.js";
import { tipOf } from "../tooltip.js";
import { t, verdictWord } from "../words.js";
import { chooseModule } from "./tree_view.js";

const TOP = 14, LEAST = 7, CALM = [0.3, 0.3, 0.5];
let cells = [];

// The calls of one step and rank: those of the origin, or those that are chosen. Calls one after the other in one
// module and direction are one cell.
function build() {
  const { table, answer } = state, unit = state.unit >= 0 ? state.unit : answer.row >= 0 ? table.unit(answer.row) : 0;
  cells = [];
  for (let c = 0; c < table.calls; c++) {
    if (table.call.unit[c] !== unit) continue;
    const path = table.module(c), direction = table.call.direction[c], last = cells[cells.length - 1];
    const cell = last && last.path === path && last.direction === direction ? last : { path, direction, look: 0, worst: NaN };
    if (cell !== last) cells.push(cell);
    cell.look = Math.max(cell.look, table.callLooks[c]);
    for (let row = table.call.first[c]; row < table.end(c); row++) if (!(table.rows.distance[row] <= cell.worst) && table.rows.distance[row] === table.rows.distance[row]) cell.worst = table.rows.distance[row];
  }
}

function origin() {
  return cells.findIndex((cell) => cell.look === ORIGIN);
}

// How strong a consequence is: less, the farther it is from the origin.
function strength(at, from) {
  return 0.3 + 0.65 * Math.exp(-4 * (at - from) / Math.max(cells.length - from, 1));
}

function draw() {
  const canvas = byId("map");
  if (!canvas || !canvas.clientWidth || !state.table) return;
  const { pen, width, height } = drawing(canvas), size = width / Math.max(cells.length, 1), from = origin(), wide = Math.max(size - (size > 3 ? 1 : 0), 0.7);
  const inks = LOOKS.map(colour);
  cells.forEach((cell, at) => {
    if (at === from) return;
    const after = from >= 0 && at > from && cell.look >= 2;
    pen.fillStyle = inks[after ? PROPAGATED : Math.min(cell.look, PROPAGATED)];
    pen.globalAlpha = after ? strength(at, from) : CALM[cell.look] ?? 0.6;
    pen.fillRect(at * size, TOP + 4, wide, height - TOP - 8);
    if (state.module && (cell.path === state.module || cell.path.startsWith(state.module + "."))) {
      pen.globalAlpha = 1;
      pen.fillStyle = colour("accent");
      pen.fillRect(at * size, height - 2, Math.max(size, 1), 2);
    }
  });
  pen.globalAlpha = 1;
  label(pen, width, size, from);
  if (from < 0) return;
  pen.fillStyle = inks[ORIGIN];
  pen.fillRect(Math.min(Math.max(0, from * size + size / 2 - Math.max(size, LEAST) / 2), width - LEAST), TOP, Math.max(size, LEAST), height - TOP);
}

// Where the forward and the backward begin, and the name of the origin above its cell.
function label(pen, width, size, from) {
  let used = -1, end = -1;
  if (from >= 0) {
    const text = "◆ " + t("origin_mark") + (cells[from].path ? t("colon") + shorten(cells[from].path, 48) : ""), room = pen.measureText(text).width;
    used = Math.max(0, Math.min(from * size, width - room));
    end = used + room;
    pen.fillStyle = colour("origin");
    pen.fillText(text, used, 10);
  }
  pen.fillStyle = colour("dim");
  for (const [direction, key] of [[0, "forward"], [1, "backward"]]) {
    const first = cells.findIndex((cell) => cell.direction === direction), text = `${t(key)} →`, x = first * size;
    if (first >= 0 && (end < 0 || x + pen.measureText(text).width + 6 < used || x > end + 6)) pen.fillText(text, x, 10);
  }
}

function cellAt(event) {
  const box = byId("map").getBoundingClientRect();
  return cells[Math.min(cells.length - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * cells.length)))];
}

function words(event) {
  const cell = cellAt(event);
  if (!cell) return "";
  const measured = state.table.measured && cell.worst === cell.worst ? `\n${t("relative")} ${figure(cell.worst, 4)}` : "";
  return title(`${cell.path || t("model")} · ${t(cell.direction ? "backward" : "forward")}\n${verdictWord(LOOKS[cell.look], state.answer.kind)}${measured}`);
}

export function showMap() {
  const canvas = el("canvas", { id: "map", role: "img", onclick: (event) => { const cell = cellAt(event); if (cell) chooseModule(cell.path); } });
  const name = () => canvas.setAttribute("aria-label", t("map"));
  tipOf(canvas, words);
  name();
  byId("map_box").append(canvas);
  const refresh = () => { byId("map_box").hidden = !state.table || !state.table.calls || state.answer.kind === "check"; if (!byId("map_box").hidden) { build(); requestAnimationFrame(draw); } };
  on("language", () => { name(); refresh(); });
  for (const event of ["data", "unit"]) on(event, refresh);
  for (const event of ["filters", "theme", "size"]) on(event, () => requestAnimationFrame(draw));
}
