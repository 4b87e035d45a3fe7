// Execution order: the difference of every shown row on a log scale, and a lane for each step and rank.

import { applyRange, refilter } from "../filter.js";
import { colour, drawing, el, pixel } from "../elements.js";
import { placeOf } from "../navigate.js";
import { tipOfRow } from "../row_words.js";
import { slices } from "../slices.js";
import { on, set, state } from "../state.js";
import { HIGHEST, LEVELS, LOOKS, LOWEST } from "../table_data.js";
import { tipOf } from "../tooltip.js";
import { t } from "../words.js";

const MARGIN = 14, GUTTER = 52, BELOW = 16;
const plot = el("canvas", { id: "plot", role: "img" });
const lanes = el("canvas", { id: "lanes", role: "img", hidden: true });
export const strip = { plot: el("div", { class: "strip" }, plot), lanes: el("div", { class: "strip" }, lanes) };
const run = slices();
let from = -1, to = -1, waiting = false, points = {};

// The worst state of each column of pixels at each level. Then draws: moving the mark or the brush only draws.
function workOut(columns) {
  const { shown, table } = state, count = shown.length, worst = new Uint8Array(columns * (LEVELS + 1)), { levels, looks } = table;
  run(count, (from, to) => {
    for (let at = from; at < to; at++) {
      const row = shown[at], place = ((at * columns / count) | 0) * (LEVELS + 1) + levels[row];
      if (worst[place] <= looks[row]) worst[place] = looks[row] + 1;
    }
  }, () => { points = { shown, columns, worst }; draw(); });
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
  paintStates(pen, top, () => 255);
}

// One byte per pixel with a state, then colours: faster than a rectangle for each.
function paintStates(pen, states, opacity) {
  const { width, height } = pen.canvas, image = pen.createImageData(width, height), out = new Uint32Array(image.data.buffer), inks = LOOKS.map((look) => pixel(colour(look)) & 0xffffff);
  for (let line = 0, at = 0; line < height; line++)
    for (let x = 0; x < width; x++, at++) if (states[at]) out[at] = inks[states[at] - 1] | opacity(states[at], line) << 24;
  pen.putImageData(image, 0, 0);
}

// A text on a picture, with its own background: points and lanes are below it.
function write(pen, text, x, y, [ground, ink]) {
  pen.globalAlpha = 0.8;
  pen.fillStyle = ground;
  pen.fillRect(x - 2, y - 10, pen.measureText(text).width + 4, 12);
  pen.globalAlpha = 1;
  pen.fillStyle = ink;
  pen.fillText(text, x, y);
}

function draw() {
  waiting = false;
  const table = state.table;
  if (!table || !plot.isConnected || !plot.clientWidth) return;
  const columns = Math.floor(plot.clientWidth - GUTTER);
  if (points.shown !== state.shown || points.columns !== columns) { workOut(columns); return; }
  plot.setAttribute("aria-label", t(table.measured ? "plot" : "plot_norm"));
  const { pen, width, height } = drawing(plot);
  paintPoints(pen, width, height);
  const at = placeOf(state.row);
  pen.fillStyle = colour("accent");
  if (at >= 0) pen.fillRect(GUTTER + at * (width - GUTTER) / state.shown.length, 0, 2, height - BELOW);
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
  const text = t("axis_order") + (state.shown.length < count ? ` (${state.shown.length})` : "") + " →";
  pen.fillText(text, GUTTER + 2, height - 3);
  pen.save();
  pen.translate(11, middle);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "center";
  pen.fillText(t(measured ? "difference" : "norm"), 0, 0);
  pen.restore();
}

function later() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}

function drawLanes() {
  const table = state.table;
  lanes.hidden = !table || table.units.length < 2;
  if (lanes.hidden || !lanes.isConnected) return;
  const tall = Math.max(3, Math.min(14, Math.floor(120 / table.units.length)));
  const { pen, height } = drawing(lanes, tall * table.units.length), { width: across, height: down } = lanes;
  lanes.setAttribute("aria-label", t("lanes"));
  const sizes = new Int32Array(table.units.length), done = new Int32Array(table.units.length), worst = new Uint8Array(across * table.units.length);
  for (let c = 0; c < table.calls; c++) sizes[table.call.unit[c]]++;
  for (let c = 0; c < table.calls; c++) {
    const unit = table.call.unit[c], place = unit * across + ((done[unit]++ * across / sizes[unit]) | 0);
    if (worst[place] <= table.callLooks[c]) worst[place] = table.callLooks[c] + 1;
  }
  for (let unit = 0; unit < table.units.length; unit++)
    for (let at = unit * across + 1; at < (unit + 1) * across; at++) worst[at] ||= worst[at - 1];
  const states = new Uint8Array(across * down), unitAt = (line) => Math.min(table.units.length - 1, Math.floor(line / down * table.units.length)), gap = tall > 4 ? down / height : 0;
  for (let line = 0; line < down; line++) {
    const unit = unitAt(line);
    if (line < (unit + 1) * down / table.units.length - gap) states.set(worst.subarray(unit * across, (unit + 1) * across), line * across);
  }
  paintStates(pen, states, (look, line) => (look === 1 ? 77 : 255) * (state.unit < 0 || state.unit === unitAt(line) ? 1 : 0.45));
  const inksOfText = [colour("bg"), colour("fg")];
  if (tall >= 11) for (let unit = 0; unit < table.units.length; unit++) write(pen, table.units[unit].label, 4, unit * tall + tall - 3, inksOfText);
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
    const count = state.shown.length, width = plot.clientWidth - GUTTER, first = Math.floor(Math.min(from, to) / width * count), last = Math.ceil(Math.max(from, to) / width * count);
    const wide = Math.abs(to - from) > 4, offset = state.range ? state.range[0] : 0;
    from = -1;
    if (wide && last - first > 0) { set("filters", { range: [offset + first, offset + last] }); applyRange(); }
    else if (count) { const row = under(up); set("row", { row: row >= 0 ? row : state.shown[Math.min(count - 1, first)] }); }
    later();
  };
}

// The row under the pointer: of those in its column of pixels, the one that is nearest in height.
function under(event) {
  const { shown, table } = state, box = plot.getBoundingClientRect(), width = box.width - GUTTER, left = event.clientX - box.left - GUTTER;
  if (!table || !shown.length || left < 0 || left >= width) return -1;
  const first = Math.floor(left / width * shown.length), last = Math.max(first + 1, Math.ceil((left + 3) / width * shown.length));
  let best = -1, away = Infinity;
  for (let at = Math.max(0, first - Math.ceil(2 / width * shown.length)); at < Math.min(last, shown.length, first + 5000); at++) {
    const distance = Math.abs(heightOf(table.levels[shown[at]] / LEVELS, box.height) - (event.clientY - box.top));
    if (distance < away) { away = distance; best = shown[at]; }
  }
  return best;
}

export function showOrder() {
  tipOf(plot, (event) => { const row = under(event); return row < 0 ? "" : tipOfRow(row); });
  tipOf(lanes, (event) => {
    const box = lanes.getBoundingClientRect(), unit = state.table.units[Math.floor((event.clientY - box.top) / box.height * state.table.units.length)];
    return unit ? `${unit.label}\n${t("lanes")}` : "";
  });
  plot.onpointerdown = brush;
  lanes.onclick = (event) => {
    const box = lanes.getBoundingClientRect(), unit = Math.floor((event.clientY - box.top) / box.height * state.table.units.length);
    set("filters", { unit: state.unit === unit ? -1 : unit, range: null });
    set("unit", {});
    refilter();
  };
  for (const event of ["shown", "row", "data", "size", "tab", "language", "theme"]) on(event, later);
  for (const event of ["data", "size", "unit", "theme", "language", "tab"]) on(event, () => requestAnimationFrame(drawLanes));
}
