// A heatmap with names next to it, its colour bar, and curves: used for comparisons over steps and for watched runs.

import { colour, drawing, el } from "./elements.js";
import { figure, shorten } from "./names.js";
import { t } from "./words.js";

export const LABEL = 250;
const INKS = { light: ["#1a56c4", "#c02a20", "#1b7a43", "#8a3fb0", "#a05a00", "#0b7285", "#6a707c", "#b8336a"], dark: ["#8ab4ff", "#ff8a80", "#6fd79b", "#d7a8f5", "#f0b253", "#5fd0e0", "#b4bac4", "#ff8fc0"] };
const STRANGE = "#ff00ff", NONE = 0.15;

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

export function mix(part) {
  const low = isDark() ? [36, 42, 54] : [235, 240, 250], high = isDark() ? [255, 122, 110] : [176, 24, 16];
  return `rgb(${low.map((value, at) => Math.round(value + (high[at] - value) * part)).join(",")})`;
}

// The smallest and the largest magnitude of the picture, without zeros.
export function rangeOf({ names, columns, value }) {
  let low = Infinity, high = -Infinity;
  for (let y = 0; y < names.length; y++)
    for (let x = 0; x < columns.length; x++) {
      const one = Math.abs(value(y, x));
      if (one > 0 && Number.isFinite(one)) { low = Math.min(low, one); high = Math.max(high, one); }
    }
  return { low, high };
}

// The colours of a heatmap with their values. `stops` are colours from the smallest to the largest.
export function colourBar(id, stops, left, right, others = []) {
  const bar = el("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
  return el("div", { class: "colours", id }, el("span", {}, left, " ", bar, " ", right), ...others.map(([ink, text]) => {
    const key = el("i", { class: "key" });
    key.style.background = ink;
    return el("span", {}, key, text);
  }));
}

export function heatBar(shown) {
  const { low, high } = rangeOf(shown);
  return colourBar("heat_colours", [mix(NONE), mix(1)], low <= high ? "|x| = " + figure(low, 3) : "0", low <= high ? `${figure(high, 3)} (${t("log_scale")})` : "", [[mix(0), "0"], [STRANGE, t("not_finite")]]);
}

// Values on a log scale between the smallest and the largest of the picture; NaN and infinities stand out.
export function drawHeat(canvas, { names, columns, value, picked, axes }) {
  const tall = names.length > 60 ? 10 : 16, { pen, width } = drawing(canvas, Math.max(names.length * tall + 32, 56)), size = (width - LABEL) / Math.max(columns.length, 1);
  const { low, high } = rangeOf({ names, columns, value }), span = Math.log(high / low), strength = (one) => one ? span > 1e-6 ? NONE + (1 - NONE) * Math.log(Math.abs(one) / low) / span : 1 : 0;
  for (let y = 0; y < names.length; y++) {
    pen.fillStyle = colour(y === picked ? "accent" : "fg");
    pen.fillText(shorten(names[y], 40), 2, y * tall + tall - 3);
    for (let x = 0; x < columns.length; x++) {
      const one = value(y, x);
      if (one === null || one === undefined) continue;
      const strange = typeof one === "string" || Number.isNaN(one) || !Number.isFinite(one);
      pen.fillStyle = strange ? STRANGE : mix(strength(one));
      pen.fillRect(LABEL + x * size, y * tall, Math.max(size - (size > 5 ? 1 : 0), 0.5), tall - 1);
    }
  }
  pen.fillStyle = colour("dim");
  const every = Math.max(1, Math.ceil(columns.length / Math.max(1, Math.floor((width - LABEL) / 70))));
  for (let x = 0; x < columns.length; x += every) pen.fillText(shorten(String(columns[x]), 12), LABEL + x * size, names.length * tall + 12);
  pen.fillText(`${axes[0]} ↑`, 2, names.length * tall + 12);
  pen.fillText(`${axes[1]} →`, (LABEL + width) / 2, names.length * tall + 26);
}

export function cellAt(canvas, event, names, columns) {
  const box = canvas.getBoundingClientRect(), tall = names.length > 60 ? 10 : 16;
  const y = Math.floor((event.clientY - box.top) / tall), x = Math.floor((event.clientX - box.left - LABEL) / ((box.width - LABEL) / Math.max(columns.length, 1)));
  return y >= 0 && y < names.length ? { y, x: Math.max(0, Math.min(columns.length - 1, x)) } : null;
}

const LEFT = 64, RIGHT = 8;

// `marks` are steps with an alarm. Returns the step under a place of the pointer.
export function drawCurves(canvas, lines, marks, label) {
  const { pen, width, height } = drawing(canvas, 180), bottom = height - 30;
  const all = lines.flatMap((line) => line.values.filter((one) => typeof one === "number" && Number.isFinite(one))), steps = lines.flatMap((line) => line.steps);
  if (!all.length) return () => null;
  const log = Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) > 100, scale = log ? Math.log10 : (one) => one;
  const low = scale(Math.min(...all)), high = scale(Math.max(...all)), first = Math.min(...steps), last = Math.max(...steps);
  const x = (step) => LEFT + (width - LEFT - RIGHT) * (last > first ? (step - first) / (last - first) : 0.5), y = (one) => bottom - (bottom - 12) * (high > low ? (scale(one) - low) / (high - low) : 0.5);
  pen.fillStyle = colour("line");
  for (const tall of [12, bottom]) pen.fillRect(LEFT, tall, width - LEFT - RIGHT, 1);
  pen.fillStyle = colour("introduced");
  for (const step of marks) if (step >= first && step <= last) pen.fillRect(x(step) - 1, 4, 2, bottom - 4);
  pen.fillStyle = colour("dim");
  pen.fillText(figure(Math.max(...all)), 2, 16);
  pen.fillText(figure(Math.min(...all)), 2, bottom);
  pen.fillText(String(first), LEFT, bottom + 13);
  if (last > first) pen.fillText(String(last), width - RIGHT - pen.measureText(String(last)).width, bottom + 13);
  pen.fillText(t("step"), (LEFT + width) / 2 - 10, bottom + 13);
  pen.fillText(label + (log ? ` (${t("log_scale")})` : ""), LEFT, height - 3);
  lines.forEach((line) => drawCurve(pen, line, x, y));
  return (event) => Math.round(first + (event.clientX - canvas.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT) * (last - first));
}

function drawCurve(pen, line, x, y) {
  pen.strokeStyle = pen.fillStyle = line.ink;
  pen.lineWidth = 1.8;
  pen.setLineDash(line.side === "golden" ? [5, 4] : []);
  pen.beginPath();
  let drawn = false;
  line.steps.forEach((step, at) => {
    const one = line.values[at];
    if (typeof one !== "number" || !Number.isFinite(one)) { drawn = false; pen.fillRect(x(step) - 2, 2, 4, 4); return; }
    drawn ? pen.lineTo(x(step), y(one)) : pen.moveTo(x(step), y(one));
    drawn = true;
  });
  pen.stroke();
  if (line.steps.length === 1) pen.fillRect(x(line.steps[0]) - 2, y(line.values[0]) - 2, 4, 4);
  pen.setLineDash([]);
}

export function inkOf(number) {
  const inks = INKS[isDark() ? "dark" : "light"];
  return inks[number % inks.length];
}
