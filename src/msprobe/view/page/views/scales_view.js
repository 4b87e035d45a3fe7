// The scales that a low-precision format gives to the blocks of a saved tensor: a picture next to that of the tensor.

import { el } from "../elements.js";
import { colourBar, mix } from "../heat.js";
import { figure } from "../names.js";
import { source } from "../source.js";
import { hideTip, tipOf } from "../tooltip.js";
import { t } from "../words.js";

const SIZE = 420, ALONG = ["rows", "columns"];
let form = "", along = "rows", side = "target", turn = 0;

function numbers(packed) {
  return new Float32Array(Uint8Array.from(atob(packed), (one) => one.charCodeAt(0)).buffer);
}

// Scales on a log scale: the smallest is pale, the largest strong. A block of zeros is blank. The picture has the shape of
// the tensor, so that a block is at the place of its elements.
function paint(canvas, { width, height, size }, scales) {
  const used = scales.filter((one) => one > 0), low = Math.min(...used), span = Math.log2(Math.max(...used) / low);
  canvas.width = width;
  canvas.height = height;
  const each = Math.min(SIZE / size[1], SIZE / size[0]), pen = canvas.getContext("2d");
  canvas.style.width = Math.max(size[1] * each, 24) + "px";
  canvas.style.height = Math.max(size[0] * each, 24) + "px";
  scales.forEach((one, at) => {
    if (!(one > 0)) return;
    pen.fillStyle = mix(0.1 + 0.9 * (span > 0 ? Math.log2(one / low) / span : 1));
    pen.fillRect(at % width, Math.floor(at / width), 1, 1);
  });
  return used.length ? [low, Math.max(...used)] : null;
}

function power(scale) {
  return `${figure(scale, 4)} (2^${figure(Math.log2(scale), 3)})`;
}

function describe(picture, scales, largest, event, canvas) {
  const box = canvas.getBoundingClientRect(), { width, height } = picture, part = (value, count) => Math.max(0, Math.min(count - 1, Math.floor(value * count)));
  const y = part((event.clientY - box.top) / box.height, height), x = part((event.clientX - box.left) / box.width, width), at = y * width + x;
  return [`${t("block")} (${y * picture.blocks}, ${x * picture.blocks})`, `${t("scale_of")} ${scales[at] > 0 ? power(scales[at]) : t("zero_block")}`, `${t("largest")} ${figure(largest[at])}`].join("\n");
}

async function draw(box, current) {
  const mine = ++turn, { row, axes, index } = current;
  hideTip();
  box.replaceChildren();
  if (!form) return;
  let picture;
  try {
    picture = await source.scales({ row, side, format: form, along, axes: axes.join(","), index: index.join(",") });
  } catch (error) { if (mine === turn) box.replaceChildren(el("p", { class: "dim wrap", text: error.message })); return; }
  if (mine !== turn) return;
  const canvas = el("canvas", { class: "heat", id: "scales_picture", role: "img", "aria-label": `${t("scales")} ${form}` }), scales = numbers(picture.scales), largest = numbers(picture.largest), range = paint(canvas, picture, scales);
  tipOf(canvas, (event) => describe(picture, scales, largest, event, canvas));
  const [rows, columns] = picture.block, notes = [`${t("block")} ${rows} × ${columns}`, picture.blocks > 1 ? `${t("thinned")} ${picture.blocks}` : "", picture.left_out ? `${t("left_out")} ${picture.left_out}` : ""].filter((one) => one);
  box.replaceChildren(canvas,
    el("div", { class: "dim", id: "scales_axes", text: `${t("rows_axis")} ↓ ${picture.size[0]} · ${t("columns_axis")} → ${picture.size[1]} · ${notes.join(" · ")}` }),
    colourBar("scales_colours", [mix(0.1), mix(1)], range ? figure(range[0], 3) : "0", range ? `${figure(range[1], 3)} (${t("log_scale")})` : "", [["transparent", t("blank_zero")]]));
}

export function scalesFigure(current) {
  const { described } = current, box = el("div", { id: "scales" }), sides = Object.keys(described.sides).filter((name) => described.sides[name]);
  if (!sides.includes(side)) side = sides[0];
  const choice = (id, label, values, chosen, take) => el("label", {}, label + " ", el("select", { id, onchange: (event) => { take(event.target.value); draw(box, current); } }, ...values.map(([value, text]) => el("option", { value, text, selected: value === chosen }))));
  const controls = [
    choice("scales_format", t("scales"), [["", t("no_format")], ...described.formats.map((name) => [name, name])], form, (value) => { form = value; }),
    choice("scales_along", t("scales_along"), ALONG.map((name) => [name, t(name + "_axis")]), along, (value) => { along = value; }),
    sides.length > 1 ? choice("scales_side", t("side"), sides.map((name) => [name, t(name)]), side, (value) => { side = value; }) : null,
  ];
  draw(box, current);
  return el("figure", {}, el("figcaption", { class: "bar" }, ...controls), box);
}
