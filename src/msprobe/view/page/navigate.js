// Moving between rows. A row that the filters hide is shown by clearing them.

import { refilter } from "./filter.js";
import { set, state } from "./state.js";
import { INTRODUCED } from "./table_data.js";

export const NO_FILTER = { unit: -1, module: "", query: "", introduced: false, range: null };

// Where the rows from this one on begin in what is shown.
export function firstFrom(row) {
  const shown = state.shown;
  let low = 0, high = shown.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (shown[middle] < row) low = middle + 1; else high = middle;
  }
  return low;
}

export function placeOf(row) {
  const at = firstFrom(row);
  return state.shown[at] === row ? at : -1;
}

export function goTo(row) {
  if (!state.table || row < 0 || row >= state.table.count) return;
  if (placeOf(row) < 0) {
    set("filters", { ...NO_FILTER, verdicts: [true, true, true, true] });
    refilter();
  }
  set("tab", { tab: "rows" });
  set("row", { row });
}

// The next (or previous) row that introduced a difference: the first one of each call.
export function jump(direction) {
  const { table, row } = state, here = row >= 0 ? table.rows.call[row] : -1;
  for (let i = row < 0 ? (direction > 0 ? 0 : table.count - 1) : row + direction; i >= 0 && i < table.count; i += direction) {
    const call = table.rows.call[i];
    if (table.looks[i] < INTRODUCED || call === here) continue;
    let first = table.call.first[call];
    while (table.looks[first] < INTRODUCED) first++;
    goTo(first);
    return true;
  }
  return false;
}

export function step(by) {
  const at = placeOf(state.row) + by;
  if (at >= 0 && at < state.shown.length) set("row", { row: state.shown[at] });
}
