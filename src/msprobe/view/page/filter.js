// Selects the rows to show.

import { globMatches } from "./names.js";
import { slices } from "./slices.js";
import { emit, state } from "./state.js";
import { INTRODUCED } from "./table_data.js";

const run = slices();
let matched = new Int32Array(0); // before the zoom

export function applyRange() {
  const { range, table } = state;
  state.shown = range ? matched.filter((row) => table.places[row] >= range[0] && table.places[row] < range[1]) : matched;
  emit("shown");
}

export function refilter() {
  const table = state.table, found = new Int32Array(table.count), test = tester(table);
  let count = 0;
  run(table.count, (from, to) => {
    for (let at = from; at < to; at++) if (test(at)) found[count++] = at;
  }, () => {
    matched = found.slice(0, count);
    applyRange();
  });
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
    if (introduced && table.looks[row] < INTRODUCED) return false;
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
  const { rows, call } = table, names = new Map();
  const named = (name, slot) => { // each step has the same names: each is checked once
    const key = name * table.texts.length + slot;
    let found = names.get(key);
    if (found === undefined) names.set(key, found = name > 0 && has((table.texts[name] + "." + table.texts[slot]).toLowerCase()));
    return found;
  };
  return (row) => {
    const one = rows.call[row];
    if (hit(call.target[one]) || hit(call.golden[one]) || hit(rows.reason[row]) || hit(call.source[one])) return true;
    if (!query.includes(".") && !isGlob) return hit(rows.slot[row]);
    return named(call.target[one], rows.slot[row]) || named(call.golden[one], rows.slot[row]);
  };
}
