// Execution order: the difference of every shown row on a log scale, and a lane for each rank. Both have one axis: steps
// follow each other, and the ranks of a step are at the same place, as they ran.

import { applyRange, refilter } from "../filter.js";
import { colour, drawing, el, pixel } from "../elements.js";
import { shorten } from "../names.js";
import { firstFrom, placeOf } from "../navigate.js";
import { tipOfRow } from "../row_words.js";
import { slices } from "../slices.js";
import { on, set, state } from "../state.js";
import { HIGHEST, LEVELS, LOOKS, LOWEST } from "../table_data.js";
import { tipOf } from "../tooltip.js";
import { t } from "../words.js";

const MARGIN = 14, GUTTER = 52, BELOW = 16, NEAR = 12, APART = 64, PASSES = 1; // PASSES: a state of paintStates
const plot = el("canvas", { id: "plot", role: "img" });
const lanes = el("canvas", { id: "lanes", role: "img", hidden: true });
export const strip = { plot: el("div", { class: "strip" }, plot), lanes: el("div", { class: "strip" }, lanes) };
const run = slices();
let from = -1, to = -1, waiting = false, points = {};

// The worst state of each column of pixels at each level. Then draws: moving the mark or the brush only draws.
function workOut(columns) {
  const { shown, table } = state, count = shown.length, worst = new Uint8Array(columns * (LEVELS + 1)), { levels, looks, places } = table;
  const view = table.view(state.range, state.unit), scale = columns / (view[1] - view[0]);
  run(count, (from, to) => {
    for (let at = from; at < to; at++) {
      const row = shown[at], column = Math.min(columns - 1, ((places[row] - view[0]) * scale) | 0), place = column * (LEVELS + 1) + levels[row];
      if (worst[place] <= looks[row]) worst[place] = looks[row] + 1;
    }
  }, () => { points = { shown, columns, worst, view }; draw(); });
}

// Where numbers are compared, a pass may have a large relative difference: its point is faint.
function fades() {
  return state.table.measured && state.answer.golden !== null;
}

// A point is two pixels wide and three high; where points overlap, the worst is on top.
function paintPoints(pen, width, height) {
  const { width: across, height: down } = pen.canvas, scale = across / width, { worst } = points;
  const top = new Uint8Array(across * down), left = Math.floor(GUTTER * scale);
  for (let at = 0; at < worst.length; at++) {
    if (!worst[at]) continue;
    const x = left + Math.floor(Math.floor(at / (LEVELS + 1)) * scale), y = Math.floor(heightOf(at % (LEVELS + 1) / LEVELS, height) * scale);
    for (let line = y; line < y + 3 * scale && line < down; line++)
      for (let place = line * across + x, end = line * across + Math.min(x + 2 * scale, across); place < end; place++) if (top[place] < worst[at]) top[place] = worst[at];
  }
  paintStates(pen, top, (look) => look === PASSES && fades() ? 90 : 255);
}

// One byte per pixel with a state, then colours: faster than a rectangle for each.
function paintStates(pen, states, opacity) {
  const { width, height } = pen.canvas, image = pen.createImageData(width, height), out = new Uint32Array(image.data.buffer), inks = LOOKS.map((look) => pixel(colour(look)) & 0xffffff);
  for (let line = 0, at = 0; line < height; line++)
    for (let x = 0; x < width; x++, at++) if (states[at]) out[at] = inks[states[at] - 1] | opacity(states[at], line) << 24;
  pen.putImageData(image, 0, 0);
}

function draw() {
  waiting = false;
  const table = state.table;
  if (!table || !plot.isConnected || !plot.clientWidth) return;
  const columns = Math.floor(plot.clientWidth - GUTTER);
  if (points.shown !== state.shown || points.columns !== columns) { workOut(columns); return; }
  plot.setAttribute("aria-label", t(table.measured ? "plot" : "plot_norm") + (fades() ? " " + t("faint") : ""));
  const { pen, width, height } = drawing(plot);
  paintPoints(pen, width, height);
  pen.fillStyle = colour("accent");
  if (placeOf(state.row) >= 0) pen.fillRect(onAxis(table.places[state.row], width), 0, 2, height - BELOW);
  if (from >= 0) { pen.globalAlpha = 0.25; pen.fillRect(GUTTER + Math.min(from, to), 0, Math.abs(to - from), height - BELOW); pen.globalAlpha = 1; }
  axes(pen, width, height);
}

// The height of a part of the scale, from 0 at the bottom to 1.
function heightOf(part, height) {
  return MARGIN + (height - MARGIN - BELOW - 4) * (1 - part);
}

function axes(pen, width, height) {
  const { measured, count } = state.table, ink = colour("dim"), middle = (height - BELOW) / 2;
  pen.fillStyle = ink;
  for (const power of measured ? [-9, -6, -3, 0] : [-6, -3, 0, 3]) {
    const y = heightOf(measured ? (power - LOWEST) / (HIGHEST - LOWEST) : (power + 6) / 12, height);
    pen.globalAlpha = 0.35;
    pen.fillRect(GUTTER, y, width - GUTTER, 1);
    pen.globalAlpha = 1;
    const text = measured && power === LOWEST ? "0" : "1e" + power;
    pen.fillText(text, GUTTER - 5 - pen.measureText(text).width, y + 4);
  }
  const text = t("axis_order") + (state.shown.length < count ? ` (${state.shown.length})` : "") + " →", end = width - pen.measureText(text).width - 2;
  pen.fillText(text, end, height - 3);
  stepsOn(pen, width, height, end);
  if (fades()) pen.fillText(t("faint"), width - pen.measureText(t("faint")).width - 2, 10);
  pen.save();
  pen.translate(11, middle);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(t(measured ? "difference" : "norm"), 0, 0);
  pen.restore();
}

// Where each step begins; where steps are too close for a text, some have one.
function stepsOn(pen, width, height, end) {
  const { parts } = state.table;
  let free = GUTTER;
  if (parts.size > 1) for (const [step, [begin]] of parts) {
    const x = onAxis(begin, width), text = `${t("step")} ${step}`;
    if (begin < points.view[0] || x < free || x + pen.measureText(text).width > end - 8) continue;
    free = x + APART;
    pen.globalAlpha = 0.5;
    pen.fillRect(x, MARGIN, 1, height - MARGIN);
    pen.globalAlpha = 1;
    pen.fillText(text, x + 4, height - 3);
  }
}

// The pixel of a place on the axis.
function onAxis(place, width) {
  const [begin, end] = points.view;
  return GUTTER + (place - begin) / (end - begin) * (width - GUTTER);
}

function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}

// One lane for each rank: `names`, and `of` each unit.
function lanesOf({ units }) {
  const names = [...new Set(units.map(({ label }) => label.slice(label.indexOf("/") + 1)))];
  return { names, of: units.map(({ label }) => names.indexOf(label.slice(label.indexOf("/") + 1))) };
}

function drawLanes() {
  const table = state.table;
  lanes.hidden = !table || table.units.length < 2;
  if (lanes.hidden || !lanes.isConnected) return;
  const { names, of } = lanesOf(table), tall = Math.max(3, Math.min(14, Math.floor(120 / names.length)));
  const { pen, width, height } = drawing(lanes, tall * names.length), { width: across, height: down } = lanes, worst = new Uint8Array(across * names.length);
  lanes.setAttribute("aria-label", t("lanes"));
  const [begin, end] = table.view(state.range, state.unit), left = GUTTER * across / width, scale = (across - left) / (end - begin);
  const pixelOf = (place) => Math.max(Math.floor(left), Math.min(across, Math.floor(left + (place - begin) * scale)));
  for (let c = 0; c < table.calls; c++) {
    const unit = table.call.unit[c], first = table.call.first[c], last = table.end(c), look = table.callLooks[c] + 1;
    if (first === last) continue;
    const after = last < table.firsts[unit + 1] ? table.places[last] : table.parts.get(table.units[unit].step)[1];
    if (after <= begin || table.places[first] >= end) continue;
    const lane = of[unit] * across, x = Math.min(pixelOf(table.places[first]), across - 1);
    for (let at = lane + x; at < lane + Math.max(pixelOf(after), x + 1); at++) if (worst[at] < look) worst[at] = look;
  }
  const states = new Uint8Array(across * down), laneAt = (line) => Math.min(names.length - 1, Math.floor(line / down * names.length)), gap = tall > 4 ? down / height : 0;
  for (let line = 0; line < down; line++) {
    const lane = laneAt(line);
    if (line < (lane + 1) * down / names.length - gap) states.set(worst.subarray(lane * across, (lane + 1) * across), line * across);
  }
  paintStates(pen, states, (look, line) => (look === PASSES ? 77 : 255) * (state.unit < 0 || of[state.unit] === laneAt(line) ? 1 : 0.45));
  pen.fillStyle = colour("dim");
  if (tall >= 11) names.forEach((name, lane) => {
    const text = shorten(name === "rank" ? t("steps") : name, 8);
    pen.fillText(text, GUTTER - 5 - pen.measureText(text).width, lane * tall + tall - 3);
  });
}

// The unit under the pointer: its rank is the lane, its step the part of the axis. -1 beside the lanes.
function unitUnder(event) {
  const { table } = state, box = lanes.getBoundingClientRect(), { names, of } = lanesOf(table), lane = Math.floor((event.clientY - box.top) / box.height * names.length);
  const [begin, end] = table.view(state.range, state.unit), place = begin + Math.max(0, event.clientX - box.left - GUTTER) / (box.width - GUTTER) * (end - begin);
  return table.units.findIndex(({ step }, unit) => of[unit] === lane && table.parts.get(step)[0] <= place && place < table.parts.get(step)[1]);
}

function place(event) {
  const box = plot.getBoundingClientRect();
  return Math.max(0, Math.min(box.width - GUTTER, event.clientX - box.left - GUTTER));
}

function brush(event) {
  from = to = place(event);
  plot.setPointerCapture(event.pointerId);
  plot.onpointermove = (move) => { to = place(move); later(); };
  plot.onpointerup = (up) => {
    plot.onpointermove = plot.onpointerup = null;
    const width = plot.clientWidth - GUTTER, [begin, end] = points.view, placed = (x) => begin + x / width * (end - begin);
    const range = [placed(Math.min(from, to)), placed(Math.max(from, to))], wide = Math.abs(to - from) > 4;
    from = -1;
    if (wide) { set("filters", { range }); applyRange(); }
    else { const row = under(up); if (row >= 0) set("row", { row }); }
    later();
  };
}

// The row under the pointer: the nearest point, of those close to its column of pixels.
function under(event) {
  const { shown, table } = state, box = plot.getBoundingClientRect(), width = box.width - GUTTER, left = event.clientX - box.left - GUTTER;
  if (!table || !shown.length || !points.view || left < 0 || left >= width) return -1;
  const [begin, end] = points.view, placed = (x) => begin + x / width * (end - begin);
  let best = -1, away = Infinity;
  table.units.forEach(({ step }, unit) => {
    const [from, to] = table.parts.get(step), size = table.firsts[unit + 1] - table.firsts[unit], rowAt = (place) => table.firsts[unit] + (place - from) / (to - from) * size;
    const last = Math.min(rowAt(placed(left + NEAR)), table.firsts[unit + 1]);
    for (let at = firstFrom(Math.max(rowAt(placed(left - NEAR)), table.firsts[unit])); at < shown.length && shown[at] < last; at++) {
      const row = shown[at], x = (table.places[row] - begin) / (end - begin) * width - left;
      const distance = Math.hypot(x, heightOf(table.levels[row] / LEVELS, box.height) - (event.clientY - box.top));
      if (distance < away) { away = distance; best = row; }
    }
  });
  return best;
}

export function showOrder() {
  tipOf(plot, (event) => { const row = under(event); return row < 0 ? "" : tipOfRow(row); });
  tipOf(lanes, (event) => { const unit = unitUnder(event); return unit < 0 ? "" : `${state.table.units[unit].label}\n${t("lanes")}`; });
  plot.onpointerdown = brush;
  lanes.onclick = (event) => {
    const unit = unitUnder(event);
    if (unit < 0) return;
    set("filters", { unit: state.unit === unit ? -1 : unit, range: null });
    set("unit", {});
    refilter();
  };
  for (const event of ["shown", "row", "data", "size", "tab", "language", "theme"]) on(event, later);
  for (const event of ["data", "size", "shown", "theme", "language", "tab"]) on(event, () => requestAnimationFrame(drawLanes));
}
