// A saved tensor: heatmap over any two axes, histograms, the worst elements, and where NaN are. Read slice by slice.

import { byId, colour, drawing, el } from "../elements.js";
import { colourBar } from "../heat.js";
import { figure, title } from "../names.js";
import { source } from "../source.js";
import { on, state } from "../state.js";
import { hideTip, tipOf } from "../tooltip.js";
import { t } from "../words.js";
import { detailsOf } from "./row_view.js";
import { scalesFigure } from "./scales_view.js";

const SIZE = 420, SPECIAL = ["", "target", "golden", "both"];
let turn = 0, current = null;

function start(row, described) {
  const rank = described.shape.length;
  return { row, described, mode: described.modes.includes("difference") ? "difference" : described.modes[0], axes: rank > 1 ? [rank - 2, rank - 1] : [0, 0], index: described.shape.map(() => 0), window: null, picture: null, pictures: {}, swept: null };
}

// Blue below zero, red above, on a scale of the fourth root: small differences are visible next to large ones. An
// infinity is the strongest of its colour; NaN stands out.
function ink(value, largest, mode) {
  if (mode === "not_finite") return [[0, 0, 0, 0], [192, 42, 32, 255], [26, 86, 196, 255], [138, 63, 176, 255]][value | 0];
  if (Number.isNaN(value)) return [255, 0, 255, 255];
  const part = Number.isFinite(value) ? largest > 0 ? Math.pow(Math.abs(value) / largest, 0.25) : 0 : 1, fade = Math.round(255 * (1 - part));
  return value > 0 ? [255, fade, fade, 255] : [fade, fade, 255, 255];
}

function paint(canvas, picture, mode) {
  const values = picture.numbers = numbersOf(picture);
  let largest = 0;
  for (const value of values) if (Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  canvas.width = picture.width;
  canvas.height = picture.height;
  const scale = Math.min(SIZE / picture.width, SIZE / picture.height);
  canvas.style.width = Math.max(picture.width * scale, 24) + "px";
  canvas.style.height = Math.max(picture.height * scale, 24) + "px";
  const pen = canvas.getContext("2d"), image = pen.createImageData(picture.width, picture.height);
  values.forEach((value, at) => image.data.set(ink(value, largest, mode), at * 4));
  pen.putImageData(image, 0, 0);
  return largest;
}

// The largest finite magnitude, and how many cells have no finite number: a limit alone would hide them.
function limits(picture, largest) {
  let infinite = 0, nan = 0;
  for (const value of picture.numbers) if (Number.isNaN(value)) nan++; else if (!Number.isFinite(value)) infinite++;
  const parts = [largest > 0 ? `|x| ≤ ${figure(largest)}` : infinite + nan ? "" : t("all_zero"), infinite ? `${t("infinite_cells")} ${infinite}` : "", nan ? `${t("nan_cells")} ${nan}` : "", picture.every > 1 ? `${t("every")} ${picture.every}` : ""];
  return parts.filter((part) => part).join(" · ");
}

function indexAt(event, canvas) {
  const box = canvas.getBoundingClientRect(), { picture, axes, index, described } = current, [top, bottom, left, right] = picture.window;
  const part = (value) => Math.max(0, Math.min(0.9999, value));
  const y = top + Math.floor(part((event.clientY - box.top) / box.height) * (bottom - top)), x = left + Math.floor(part((event.clientX - box.left) / box.width) * (right - left));
  const at = [...index];
  if (described.shape.length > 1) at[axes[0]] = y;
  at[axes[1]] = x;
  return { at, y, x };
}

function plain(value) {
  return Number.isNaN(value) ? "nan" : figure(value);
}

// Both sides and the difference at a place. The other pictures of the slice are read once, when the pointer comes.
function tipAt({ at, y, x }) {
  const { pictures, described } = current, lines = [`[${at.join(", ")}]`], values = {};
  for (const mode of described.modes) {
    if (mode === "not_finite") continue;
    if (!pictures[mode]) { readPicture(mode); return lines[0]; }
    const [top, bottom, left, right] = pictures[mode].window, { width, height, numbers } = pictures[mode];
    if (!numbers) return lines[0];
    values[mode] = numbers[Math.min(height - 1, Math.floor((y - top) / (bottom - top) * height)) * width + Math.min(width - 1, Math.floor((x - left) / (right - left) * width))];
  }
  return [...lines, ...Object.entries(values).map(([mode, value]) => `${t(mode)} ${plain(value)}`)].join("\n");
}

async function readPicture(mode) {
  const mine = current, { row, axes, index, window: zoom } = mine, kept = mine.pictures;
  kept[mode] = { window: [0, 1, 0, 1], width: 1, height: 1, numbers: null };
  const picture = await source.slice({ row, mode, axes: axes.join(","), index: index.join(","), ...(zoom ? { window: zoom.join(",") } : {}) });
  picture.numbers = numbersOf(picture);
  if (kept === mine.pictures) kept[mode] = picture;
}

function numbersOf(picture) {
  return new Float32Array(Uint8Array.from(atob(picture.values), (one) => one.charCodeAt(0)).buffer);
}

function coloursOf(mode, largest) {
  const css = (value) => `rgb(${ink(value, 1, mode).slice(0, 3).join(",")})`;
  if (mode === "not_finite") return colourBar("colours", ["transparent", "transparent"], t("finite"), "", [1, 2, 3].map((value) => [css(value), t(SPECIAL[value])]));
  const stops = [-1, -0.1, -0.001, 0, 0.001, 0.1, 1].map(css);
  return colourBar("colours", stops, figure(-largest, 3), `${figure(largest, 3)} (${t("root_scale")})`, [["rgb(255,0,255)", "NaN"]]);
}

function heatmap(canvas, caption) {
  const { picture, mode } = current, largest = paint(canvas, picture, mode);
  caption.textContent = mode === "not_finite" ? t("not_finite") : limits(picture, largest);
  canvas.onmousemove = (event) => {
    const { at } = indexAt(event, canvas), box = canvas.getBoundingClientRect();
    const cell = Math.min(picture.height - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * picture.height))) * picture.width + Math.min(picture.width - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * picture.width)));
    const value = picture.numbers[cell];
    byId("under").textContent = `[${at.join(", ")}] ${mode === "not_finite" ? SPECIAL[value] : plain(value)}`;
  };
  tipOf(canvas, (event) => tipAt(indexAt(event, canvas)));
  byId("colours")?.replaceWith(coloursOf(mode, largest));
  canvas.onpointerdown = (event) => {
    const from = indexAt(event, canvas);
    canvas.setPointerCapture(event.pointerId);
    canvas.onpointerup = (up) => {
      const to = indexAt(up, canvas);
      canvas.onpointerup = null;
      if (Math.abs(to.x - from.x) < 2 && Math.abs(to.y - from.y) < 2) return;
      current.window = [Math.min(from.y, to.y), Math.max(from.y, to.y) + 1, Math.min(from.x, to.x), Math.max(from.x, to.x) + 1];
      load();
    };
  };
}

function bars(canvas, series, labels) {
  const { pen, width, height } = drawing(canvas, 130), top = Math.max(1, ...series.flatMap((one) => one.counts)), count = series[0].counts.length;
  series.forEach(({ counts, ink: name }, turnOf) => counts.forEach((value, at) => {
    const tall = value ? Math.max(2, Math.log(value + 1) / Math.log(top + 1) * (height - 18)) : 0, size = width / count;
    pen.fillStyle = colour(name);
    pen.globalAlpha = 0.75;
    pen.fillRect(at * size + turnOf * size / series.length, height - 14 - tall, Math.max(size / series.length - 0.5, 1), tall);
  }));
  pen.globalAlpha = 1;
  pen.fillStyle = colour("dim");
  labels.forEach(([part, text]) => pen.fillText(text, Math.min(part * width, width - 40), height - 2));
}

function statistics(box) {
  const { swept, described } = current;
  if (!swept) return;
  const names = Object.keys(swept.histogram), values = el("canvas", { role: "img", "aria-label": t("histogram") }), away = el("canvas", { role: "img", "aria-label": t("histogram_difference") });
  const legend = el("div", { class: "legend" }, ...names.map((name) => el("span", { class: name === "target" ? "propagated" : "pass", text: `■ ${t(name)}: NaN ${swept.special[name][0]}, inf ${swept.special[name][1]}` })));
  const rows = swept.worst.map((one) => el("tr", {}, el("td", {}, el("button", { class: "mono", text: "[" + one.index.join(", ") + "]", onclick: () => goToIndex(one.index) })), el("td", { class: "n mono", text: figure(one.target) }), el("td", { class: "n mono", text: figure(one.golden) }), el("td", { class: "n mono", text: figure(one.difference) })));
  box.replaceChildren(
    el("div", { class: "dim", id: "share", text: swept.share < 1 ? `${Math.round(swept.share * 100)} % ${t("read")}` : "" }),
    el("figure", {}, el("figcaption", { text: t("histogram") }), values, legend),
    ...(swept.difference ? [el("figure", {}, el("figcaption", { text: t("histogram_difference") }), away)] : []),
    ...(rows.length ? [el("h2", { text: t("worst") }), el("table", { id: "worst" }, el("thead", {}, el("tr", {}, ...["index", "target", "golden", "difference"].map((key) => el("th", { scope: "col", text: t(key) })))), el("tbody", {}, ...rows))] : described.modes.includes("difference") && swept.share === 1 ? [el("p", { id: "equal", text: t("equal") })] : []));
  for (const canvas of [values, away]) canvas.style.width = "420px";
  bars(values, names.map((name) => ({ counts: swept.histogram[name], ink: name === "target" ? "propagated" : "pass" })), [[0, figure(swept.edges[0])], [0.88, figure(swept.edges[1])]]);
  if (swept.difference) bars(away, [{ counts: swept.difference.counts, ink: "introduced" }], [[0, "0"], ...[-9, -6, -3, 0, 3].map((power) => [(power - swept.difference.from + 1) / swept.difference.counts.length, "1e" + power])]);
}

function goToIndex(index) {
  current.index = [...index];
  const [y, x] = current.axes, around = (at, size) => [Math.max(0, at - 16), Math.min(size, at + 17)];
  const shape = current.described.shape;
  current.window = [...(shape.length > 1 ? around(index[y], shape[y]) : [0, 1]), ...around(index[x], shape[x])];
  load();
}

async function load() {
  const mine = turn, { row, mode, axes, index, window: zoom } = current;
  hideTip();
  current.picture = await source.slice({ row, mode, axes: axes.join(","), index: index.join(","), ...(zoom ? { window: zoom.join(",") } : {}) });
  if (mine !== turn) return;
  current.pictures = { [mode]: current.picture };
  render();
}

async function sweep() {
  const mine = turn;
  while (mine === turn && state.tab === "tensor") {
    current.swept = await source.sweep(current.row);
    if (mine !== turn) return;
    const box = byId("sweep");
    if (box) statistics(box);
    if (current.swept.share >= 1) return;
  }
}

function choices() {
  const { described, mode, axes, index } = current, { shape } = described;
  const axis = (place, key) => el("label", {}, t(key) + " ", el("select", { id: key, onchange: (event) => {
    const chosen = +event.target.value;
    if (axes[1 - place] === chosen) axes[1 - place] = axes[place];
    axes[place] = chosen;
    current.window = null;
    load();
  } }, ...shape.map((size, at) => el("option", { value: at, text: `${t("axis")} ${at} (${size})`, selected: at === axes[place] }))));
  const others = shape.map((size, at) => axes.includes(at) ? null : el("label", {}, `${t("index")} ${at} `, el("input", { type: "number", min: 0, max: size - 1, value: index[at], data: { axis: at }, onchange: (event) => {
    index[at] = Math.max(0, Math.min(size - 1, Math.floor(+event.target.value) || 0));
    load();
  } })));
  return el("div", { class: "bar" },
    ...described.modes.map((name) => el("button", { text: t(name), data: { mode: name }, "aria-pressed": String(name === mode), onclick: () => { current.mode = name; load(); } })),
    ...(shape.length > 2 ? [axis(0, "rows_axis"), axis(1, "columns_axis"), ...others] : []),
    current.window ? el("button", { id: "unzoom", text: t("reset"), onclick: () => { current.window = null; load(); } }) : null);
}

function render() {
  const box = byId("tensor"), canvas = el("canvas", { class: "heat", role: "img", "aria-label": t("tab.tensor") }), caption = el("figcaption"), { described } = current;
  const sides = Object.entries(described.sides).filter(([, one]) => one).map(([name, one]) => `${t(name)} ${one.dtype} [${one.shape.join(", ")}]`).join(" · ");
  const sweepBox = el("div", { id: "sweep" });
  box.replaceChildren(el("h2", { class: "mono wrap", text: title(state.table.name(current.row)) }), el("div", { class: "dim mono", id: "shapes", text: sides }), choices(),
    el("div", { class: "pictures" }, el("figure", {}, caption, canvas, el("div", { id: "colours" }), el("div", { class: "mono", id: "under", text: " " })), scalesFigure(current), sweepBox));
  heatmap(canvas, caption);
  statistics(sweepBox);
  box.dataset.row = current.row;
}

async function open() {
  if (state.tab !== "tensor" || !state.table) return;
  const box = byId("tensor"), row = state.row;
  if (!source.live) { box.replaceChildren(el("p", { text: t("tensor_file") })); return; }
  if (row < 0) { box.replaceChildren(el("p", { text: t("no_tensor") })); return; }
  const mine = ++turn;
  try {
    const details = await detailsOf(state.table.rows.call[row]);
    if (!details?.rows.some((one) => one.row === row && one.tensor)) throw new Error("");
    const described = await source.tensor(row);
    if (mine !== turn) return;
    current = start(row, described);
    await load();
    await sweep();
  } catch (error) {
    if (mine === turn) box.replaceChildren(el("p", { text: t("no_tensor") }), el("p", { class: "dim wrap", text: error.message }));
  }
}

export function showTensor() {
  for (const event of ["tab", "row", "language"]) on(event, open);
  on("data", () => { turn++; open(); });
  on("theme", () => { if (current && byId("scales")) render(); });
}
