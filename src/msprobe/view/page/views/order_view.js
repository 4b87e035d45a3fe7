// Execution order: the difference of every shown row on a log scale, and a lane for each step and rank.

import { applyRange, refilter } from "../filter.js";
import { colour, drawing, el, pixel } from "../elements.js";
import { placeOf } from "../navigate.js";
import { on, set, state } from "../state.js";
import { HIGHEST, LEVELS, LOOKS, LOWEST } from "../table_data.js";
import { t } from "../words.js";

const MARGIN = 8;
const plot = el("canvas", { id: "plot", role: "img" });
const lanes = el("canvas", { id: "lanes", role: "img", hidden: true });
export const strip = { plot: el("div", { class: "strip" }, plot), lanes: el("div", { class: "strip" }, lanes) };
let from = -1, to = -1, waiting = false;

// One byte per pixel with the worst state there, then colours: two hundred thousand points in a few milliseconds.
function points(width, height) {
  const { shown, table } = state, count = shown.length, worst = new Uint8Array(width * height), room = height - 2 * MARGIN;
  for (let at = 0; at < count; at++) {
    const row = shown[at], x = (at * width / count) | 0, y = (MARGIN + room * (1 - table.levels[row] / LEVELS)) | 0, look = table.looks[row] + 1;
    for (let place = y * width + x, line = 0; line < 3; line++, place += width) {
      if (worst[place] < look) worst[place] = look;
      if (worst[place + 1] < look && x + 1 < width) worst[place + 1] = look;
    }
  }
  return worst;
}

// A text on a picture, with a ground of its own: points and lanes lie below it.
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
  plot.setAttribute("aria-label", t(table.measured ? "plot" : "plot_norm"));
  plot.title = plot.getAttribute("aria-label");
  const width = plot.width = Math.max(plot.clientWidth, 1), height = plot.height = Math.max(plot.clientHeight, 1), pen = plot.getContext("2d");
  const worst = points(width, height), image = pen.createImageData(width, height), out = new Uint32Array(image.data.buffer), inks = LOOKS.map((look) => pixel(colour(look)));
  for (let at = 0; at < worst.length; at++) if (worst[at]) out[at] = inks[worst[at] - 1];
  pen.putImageData(image, 0, 0);
  const at = placeOf(state.row);
  pen.fillStyle = colour("accent");
  if (at >= 0) pen.fillRect(at * width / state.shown.length, 0, 2, height);
  if (from >= 0) { pen.globalAlpha = 0.25; pen.fillRect(Math.min(from, to), 0, Math.abs(to - from), height); pen.globalAlpha = 1; }
  pen.font = "11px system-ui, sans-serif";
  const inksOfText = [colour("bg"), colour("fg")], dim = colour("dim"), powers = table.measured ? [-6, -3, 0] : [-3, 0, 3];
  for (const power of powers) {
    const part = table.measured ? (power - LOWEST) / (HIGHEST - LOWEST) : (power + 6) / 12, y = MARGIN + (height - 2 * MARGIN) * (1 - part);
    pen.globalAlpha = 0.35;
    pen.fillStyle = dim;
    pen.fillRect(0, y, width, 1);
    write(pen, "1e" + power, 3, y - 2, inksOfText);
  }
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
  const { pen, width } = drawing(lanes, tall * table.units.length), inks = LOOKS.map(colour);
  lanes.setAttribute("aria-label", t("lanes"));
  const sizes = new Int32Array(table.units.length), done = new Int32Array(table.units.length);
  for (let c = 0; c < table.calls; c++) sizes[table.call.unit[c]]++;
  const worst = new Uint8Array(Math.ceil(width) * table.units.length);
  for (let c = 0; c < table.calls; c++) {
    const unit = table.call.unit[c], place = unit * Math.ceil(width) + ((done[unit]++ * width / sizes[unit]) | 0);
    worst[place] = Math.max(worst[place], table.callLooks[c] + 1);
  }
  for (let unit = 0; unit < table.units.length; unit++)
    for (let x = 0, last = 0; x < width; x++) {
      last = worst[unit * Math.ceil(width) + x] || last;
      if (!last) continue;
      pen.globalAlpha = (last === 1 ? 0.3 : 1) * (state.unit < 0 || state.unit === unit ? 1 : 0.45);
      pen.fillStyle = inks[last - 1];
      pen.fillRect(x, unit * tall, 1, tall - (tall > 4 ? 1 : 0));
    }
  pen.globalAlpha = 1;
  const inksOfText = [colour("bg"), colour("fg")];
  if (tall >= 11) for (let unit = 0; unit < table.units.length; unit++) write(pen, table.units[unit].label, 4, unit * tall + tall - 3, inksOfText);
}

function place(event) {
  const box = plot.getBoundingClientRect();
  return Math.max(0, Math.min(box.width, event.clientX - box.left));
}

function brush(event) {
  from = to = place(event);
  plot.setPointerCapture(event.pointerId);
  plot.onpointermove = (move) => { to = place(move); later(); };
  plot.onpointerup = () => {
    plot.onpointermove = plot.onpointerup = null;
    const count = state.shown.length, width = plot.clientWidth, first = Math.floor(Math.min(from, to) / width * count), last = Math.ceil(Math.max(from, to) / width * count);
    const wide = Math.abs(to - from) > 4, offset = state.range ? state.range[0] : 0;
    from = -1;
    if (wide && last - first > 0) { set("filters", { range: [offset + first, offset + last] }); applyRange(); }
    else if (count) set("row", { row: state.shown[Math.min(count - 1, first)] });
    later();
  };
}

export function showOrder() {
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
