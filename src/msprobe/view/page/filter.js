// Selects the rows to show. Works in slices of a few milliseconds, so that typing and scrolling never wait for it.

import { globMatches } from "./names.js";
import { emit, state } from "./state.js";
import { INTRODUCED } from "./table_data.js";

const SLICE = 8, LOOK_AT_CLOCK = 1024;
let turn = 0;
let matched = new Int32Array(0);
const channel = new MessageChannel();
let next = null;
channel.port1.onmessage = () => { const work = next; next = null; if (work) work(); };

// Waits for the next frame: one slice per frame, so that frames are not late.
function later(work) {
  next = work;
  requestAnimationFrame(() => channel.port2.postMessage(0));
}

// The rows that pass the filters, before the zoom.
export function matchedCount() {
  return matched.length;
}

export function applyRange() {
  const range = state.range;
  state.shown = range ? matched.subarray(Math.min(range[0], matched.length), range[1]) : matched;
  emit("shown");
}

export function refilter() {
  const mine = ++turn, table = state.table, found = new Int32Array(table.count), test = tester(table);
  let at = 0, count = 0;
  const work = () => {
    if (mine !== turn) return;
    const end = performance.now() + SLICE;
    while (at < table.count) {
      if (test(at)) found[count++] = at;
      at++;
      if (at % LOOK_AT_CLOCK === 0 && performance.now() > end) { later(work); return; }
    }
    matched = found.slice(0, count);
    applyRange();
    emit("filtered");
  };
  work();
}

function tester(table) {
  const { rows, call } = table, { verdicts, introduced, unit, module } = state;
  const wanted = textTester(table, state.query.trim().toLowerCase());
  const inside = new Int8Array(call.unit.length).fill(-1);
  const isInside = (number) => {
    if (inside[number] < 0) {
      const paths = [table.texts[call.target_module[number]], table.texts[call.golden_module[number]]];
      inside[number] = paths.some((path) => path === module || path.startsWith(module + ".")) ? 1 : 0;
    }
    return inside[number] === 1;
  };
  return (row) => {
    if (!verdicts[rows.state[row] & 3]) return false;
    if (introduced && table.looks[row] !== INTRODUCED) return false;
    if (unit >= 0 && call.unit[rows.call[row]] !== unit) return false;
    if (module && !isInside(rows.call[row])) return false;
    return wanted(row);
  };
}

// Names, reasons and source files; `*` and `?` make it a glob. Each distinct text is checked once.
function textTester(table, query) {
  if (!query) return () => true;
  const isGlob = /[*?]/.test(query), pattern = "*" + query + "*";
  const has = isGlob ? (text) => globMatches(pattern, text) : (text) => text.includes(query);
  const known = new Int8Array(table.texts.length).fill(-1);
  const hit = (text) => {
    if (known[text] < 0) known[text] = has(table.texts[text].toLowerCase()) ? 1 : 0;
    return known[text] === 1;
  };
  const { rows, call } = table;
  const lower = new Map();
  const low = (text) => {
    if (!lower.has(text)) lower.set(text, table.texts[text].toLowerCase());
    return lower.get(text);
  };
  return (row) => {
    const one = rows.call[row];
    if (hit(call.target[one]) || hit(call.golden[one]) || hit(rows.reason[row]) || hit(call.source[one])) return true;
    if (!query.includes(".") && !isGlob) return hit(rows.slot[row]);
    const slot = "." + low(rows.slot[row]);
    return has(low(call.target[one]) + slot) || (call.golden[one] && has(low(call.golden[one]) + slot));
  };
}
