// Ranks as columns in execution order; the same collective of several ranks is joined, and the odd rank is marked.
// Ranks that were compared as one (another layout) share their calls: each column has those that its rank made.

import { byId, colour, drawing, el } from "../elements.js";
import { figure, shorten } from "../names.js";
import { goTo } from "../navigate.js";
import { on, state } from "../state.js";
import { INTRODUCED, LOOKS } from "../table_data.js";
import { t } from "../words.js";

const HEIGHT = 520, TOP = 34, WIDE = 46, COLLECTIVE = 1, CLOSE = 1e-4;
let chosen = null, links = [];

function steps() {
  return [...new Set(state.table.units.map((unit) => unit.step))];
}

// The calls of each rank of a step, and its collectives by name and turn.
function columnsOf(step) {
  const { table } = state, columns = [];
  const byUnit = new Map(), made = new Map();
  table.units.forEach((unit, at) => {
    if (unit.step !== step) return;
    byUnit.set(at, (unit.ranks ?? [unit.rank ?? columns.length]).map((rank) => ({ unit: at, rank, joined: unit.ranks !== null, calls: [], collectives: [] })));
    columns.push(...byUnit.get(at));
  });
  const makers = (call) => {
    const text = table.texts[table.call.ranks[call]];
    if (!made.has(text)) made.set(text, new Set(text.split(" ").filter(Boolean).map(Number)));
    return made.get(text);
  };
  for (let c = 0; c < table.calls; c++) for (const column of byUnit.get(table.call.unit[c]) ?? []) {
    if (column.joined && !makers(c).has(column.rank)) continue;
    if (table.call.flags[c] & COLLECTIVE) column.collectives.push({ call: c, place: column.calls.length, name: table.callName(c) });
    column.calls.push(c);
  }
  return columns;
}

function outputNorm(call) {
  const { table } = state;
  for (let row = table.call.first[call]; row < table.end(call); row++)
    if (table.texts[table.rows.slot[row]].startsWith("output")) return table.rows.target[row];
  return NaN;
}

// If the results of a reduction should agree and do not, the ranks away from the median are odd.
function oddAt(ends, name) {
  if (!/all_?reduce|broadcast|all_?gather/i.test(name)) return [];
  const values = ends.map((end) => outputNorm(end.call)).filter((one) => one === one);
  if (values.length < 2) return [];
  const middle = [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)];
  return ends.filter((end) => { const one = outputNorm(end.call); return Math.abs(one - middle) > CLOSE * Math.max(Math.abs(middle), 1e-30); }).map((end) => end.column.rank);
}

// In a comparison the odd rank is the one where a difference began first.
function guilty(columns) {
  const { table, answer } = state;
  if (answer.ranks?.length && answer.ranks.length < columns.length) return new Set(answer.ranks);
  const fact = answer.row >= 0 && answer.golden !== null ? table.units[table.unit(answer.row)] : null;
  if (fact && columns.some((column) => column.unit === table.unit(answer.row)) && table.looks[answer.row] >= INTRODUCED) return new Set([fact.rank ?? 0]);
  return new Set();
}

function join(columns) {
  const turns = new Map();
  for (const column of columns) for (const one of column.collectives) {
    if (!turns.has(one.name)) turns.set(one.name, []);
    turns.get(one.name).push({ ...one, column });
  }
  return [...turns].filter(([, ends]) => ends.length > 1).map(([name, ends]) => ({ name, ends, odd: oddAt(ends, name) }));
}

// The results of a collective by rank; ranks that were compared as one have one result.
function endsOf(link) {
  if (!link.ends[0].column.joined) return link.ends.map((end) => figure(outputNorm(end.call))).join(" | ");
  return `${t("ranks")} ${link.ends.map((end) => end.column.rank).join(", ")}`;
}

function draw() {
  const columns = columnsOf(chosen), canvas = byId("ranks"), { pen, width } = drawing(canvas, HEIGHT), { table } = state, inks = LOOKS.map(colour);
  links = join(columns);
  const odd = guilty(columns);
  for (const link of links) for (const rank of link.odd) if (link.odd.length < link.ends.length / 2 + 0.5) odd.add(rank);
  const gap = width / columns.length, x = (at) => at * gap + gap / 2 - WIDE / 2, room = HEIGHT - TOP - 10, y = (column, place) => TOP + room * place / Math.max(column.calls.length, 1);
  columns.forEach((column, at) => {
    column.at = at;
    pen.fillStyle = colour(odd.has(column.rank) ? "introduced" : "fg");
    pen.fillText(`${t("rank")} ${column.rank}${odd.has(column.rank) ? "  ◆ " + t("odd") : ""}`, x(at) - 4, 16);
    column.calls.forEach((call, place) => {
      const look = table.callLooks[call];
      pen.globalAlpha = look ? 1 : 0.3;
      pen.fillStyle = inks[look];
      pen.fillRect(x(at), y(column, place), WIDE, Math.max(room / column.calls.length, 1));
    });
    pen.globalAlpha = 1;
  });
  for (const link of links) {
    link.points = link.ends.map((end) => ({ x: x(end.column.at), y: y(end.column, end.place + 0.5), call: end.call }));
    pen.strokeStyle = link.odd.length ? colour("introduced") : colour("accent");
    pen.lineWidth = link.odd.length ? 2.5 : 1.2;
    pen.beginPath();
    link.points.forEach((point, at) => { at ? pen.lineTo(point.x, point.y) : pen.moveTo(point.x + WIDE, point.y); pen.moveTo(point.x + WIDE, point.y); });
    pen.stroke();
  }
  const lines = links.slice(0, 200).map((link) => el("button", { class: "mono", onclick: () => goTo(table.call.first[link.ends[0].call]) }, shorten(link.name, 70), link.odd.length ? ` · ${t("disagree")}: ${link.odd.join(", ")}` : "", ` · ${endsOf(link)}`));
  byId("odd").textContent = odd.size ? `${t("odd")}: ${[...odd].join(", ")}` : "";
  byId("collective_list").replaceChildren(...lines);
}

function click(event) {
  const box = event.target.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
  let best = null, away = 12;
  for (const link of links) for (const point of link.points) {
    const distance = Math.abs(point.y - top) + (left < point.x - 40 || left > point.x + WIDE + 40 ? 8 : 0);
    if (distance < away) { away = distance; best = point; }
  }
  if (best) goTo(state.table.call.first[best.call]);
}

function render() {
  if (state.tab !== "ranks" || !state.table) return;
  const box = byId("ranks_box"), ranks = new Set(state.table.units.flatMap((unit) => unit.ranks ?? [unit.rank]));
  if (ranks.size < 2) { box.replaceChildren(el("p", { text: t("one_rank") })); return; }
  const known = steps(), row = state.answer.row;
  if (!known.includes(chosen)) chosen = row >= 0 ? state.table.units[state.table.unit(row)].step : known[0];
  const choice = el("select", { id: "step", "aria-label": t("step"), onchange: (event) => { chosen = known[+event.target.value]; draw(); } }, ...known.map((step, at) => el("option", { value: at, text: `${t("step")} ${step ?? ""}`, selected: step === chosen })));
  box.replaceChildren(el("div", { class: "bar" }, choice, el("strong", { class: "introduced", id: "odd" })), el("p", { class: "dim", text: t("collectives") }),
    el("canvas", { id: "ranks", role: "img", "aria-label": t("tab.ranks"), onclick: click }), el("div", { class: "links", id: "collective_list" }));
  draw();
}

export function showRanks() {
  for (const event of ["tab", "data", "language", "theme", "size"]) on(event, render);
}
