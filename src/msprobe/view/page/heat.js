// A heatmap with names next to it, and curves below: used for comparisons over steps and for watched runs.

import { colour, drawing } from "./elements.js";
import { figure, shorten } from "./names.js";

export const LABEL = 250;
const INKS = ["#1a56c4", "#c02a20", "#1b7a43", "#8a3fb0", "#a05a00", "#0b7285", "#6a707c", "#b8336a"];

function mix(part) {
  const dark = document.documentElement.dataset.theme === "dark", low = dark ? [36, 42, 54] : [235, 240, 250], high = dark ? [255, 122, 110] : [176, 24, 16];
  return `rgb(${low.map((value, at) => Math.round(value + (high[at] - value) * part)).join(",")})`;
}

// Values on a log scale between the smallest and the largest of the picture; NaN and infinities stand out.
export function drawHeat(canvas, { names, columns, value, picked }) {
  const tall = names.length > 60 ? 10 : 16, { pen, width } = drawing(canvas, Math.max(names.length * tall + 16, 40)), size = (width - LABEL) / Math.max(columns.length, 1);
  let low = Infinity, high = -Infinity;
  for (let y = 0; y < names.length; y++)
    for (let x = 0; x < columns.length; x++) {
      const one = Math.abs(value(y, x));
      if (one > 0 && Number.isFinite(one)) { low = Math.min(low, one); high = Math.max(high, one); }
    }
  const span = Math.log(high / low), strength = (one) => one ? span > 1e-6 ? 0.15 + 0.85 * Math.log(Math.abs(one) / low) / span : 1 : 0;
  for (let y = 0; y < names.length; y++) {
    pen.fillStyle = colour(y === picked ? "accent" : "fg");
    pen.fillText(shorten(names[y], 40), 2, y * tall + tall - 3);
    for (let x = 0; x < columns.length; x++) {
      const one = value(y, x);
      if (one === null || one === undefined) continue;
      const strange = typeof one === "string" || Number.isNaN(one) || !Number.isFinite(one);
      pen.fillStyle = strange ? "#ff00ff" : mix(strength(one));
      pen.fillRect(LABEL + x * size, y * tall, Math.max(size - (size > 5 ? 1 : 0), 0.5), tall - 1);
    }
  }
  pen.fillStyle = colour("dim");
  const every = Math.max(1, Math.ceil(columns.length / Math.max(1, Math.floor((width - LABEL) / 70))));
  for (let x = 0; x < columns.length; x += every) pen.fillText(shorten(String(columns[x]), 12), LABEL + x * size, names.length * tall + 12);
}

export function cellAt(canvas, event, names, columns) {
  const box = canvas.getBoundingClientRect(), tall = names.length > 60 ? 10 : 16;
  const y = Math.floor((event.clientY - box.top) / tall), x = Math.floor((event.clientX - box.left - LABEL) / ((box.width - LABEL) / Math.max(columns.length, 1)));
  return y >= 0 && y < names.length ? { y, x: Math.max(0, Math.min(columns.length - 1, x)) } : null;
}

export function drawCurves(canvas, lines) {
  const { pen, width, height } = drawing(canvas, 160), left = 64, bottom = height - 18;
  const all = lines.flatMap((line) => line.values.filter((one) => typeof one === "number" && Number.isFinite(one))), steps = lines.flatMap((line) => line.steps);
  if (!all.length) return;
  const log = Math.min(...all) > 0 && Math.max(...all) / Math.min(...all) > 100, scale = log ? Math.log10 : (one) => one;
  const low = scale(Math.min(...all)), high = scale(Math.max(...all)), first = Math.min(...steps), last = Math.max(...steps);
  const x = (step) => left + (width - left - 8) * (last > first ? (step - first) / (last - first) : 0.5), y = (one) => bottom - (bottom - 8) * (high > low ? (scale(one) - low) / (high - low) : 0.5);
  pen.fillStyle = colour("dim");
  pen.fillText(figure(Math.max(...all)), 2, 14);
  pen.fillText(figure(Math.min(...all)) + (log ? " log" : ""), 2, bottom);
  pen.fillText(String(first), left, height - 4);
  pen.fillText(String(last), width - 40, height - 4);
  lines.forEach((line, number) => {
    pen.strokeStyle = pen.fillStyle = line.ink || INKS[number % INKS.length];
    pen.lineWidth = 1.6;
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
  });
  pen.setLineDash([]);
}

export function inkOf(number) {
  return INKS[number % INKS.length];
}
