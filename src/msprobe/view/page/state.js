// What is shown, and the listeners to its changes. The part in FIELDS is in the address, so a link restores it.

export const state = {
  answer: null, table: null, shown: new Int32Array(0), tab: "rows", row: -1,
  unit: -1, module: "", query: "", verdicts: [true, true, true, true], introduced: false, range: null,
  picks: new Set(), folded: false, version: 0,
};
const listeners = {};

export function on(event, work) {
  (listeners[event] = listeners[event] || []).push(work);
}

export function emit(event) {
  for (const work of listeners[event] || []) work();
}

export function set(event, changes) {
  Object.assign(state, changes);
  emit(event);
  writeAddress();
}

let reading = false;
function writeAddress() {
  if (reading || !state.table) return;
  const parts = new URLSearchParams();
  if (state.tab !== "rows") parts.set("tab", state.tab);
  if (state.row >= 0) parts.set("row", state.table.id(state.row));
  if (state.unit >= 0) parts.set("unit", state.unit);
  if (state.module) parts.set("module", state.module);
  if (state.query) parts.set("search", state.query);
  if (state.introduced) parts.set("introduced", "1");
  if (state.verdicts.includes(false)) parts.set("verdicts", state.verdicts.map(Number).join(""));
  if (state.range) parts.set("range", state.range.map((place) => place.toFixed(7)).join("-"));
  const text = "#" + parts;
  if (location.hash === text) return;
  try { history.replaceState(null, "", text); } catch { /* a notebook: its frame has no address */ }
}

// Returns whether the address contains a state.
export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (![...parts].length) return false;
  const table = state.table, number = (key, limit) => {
    const value = parseInt(parts.get(key), 10);
    return value >= 0 && value < limit ? value : -1;
  };
  reading = true;
  const range = (parts.get("range") || "").split("-").map(Number);
  Object.assign(state, {
    tab: parts.get("tab") || "rows", row: table.withId(parts.get("row")), unit: number("unit", table.units.length),
    module: parts.get("module") || "", query: parts.get("search") || "", introduced: parts.get("introduced") === "1",
    verdicts: [0, 1, 2, 3].map((place) => (parts.get("verdicts") || "1111")[place] !== "0"),
    range: range.length === 2 && range[1] > range[0] && range[1] <= 1 ? range : null,
  });
  reading = false;
  return true;
}
