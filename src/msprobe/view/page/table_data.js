// The rows: packed columns as the server sent them, and values that are computed from them once.

const TYPES = { i4: Int32Array, f4: Float32Array, u1: Uint8Array };
export const LOOKS = ["pass", "not_compared", "differs", "propagated", "introduced", "origin"];
export const PROPAGATED = 3;
export const INTRODUCED = 4; // the origin too
export const ORIGIN = 5;
const GOLDEN_ONLY = 16;
export const LEVELS = 100;
export const LOWEST = -9;
export const HIGHEST = 1;
const ROLE_LOOK = [0, 4, 3], VERDICT_LOOK = [0, 2, 2, 1];

export class Table {
  constructor(head, buffer, origin) {
    this.count = head.rows;
    this.calls = head.calls;
    this.texts = head.texts;
    this.units = head.units;
    this.classes = head.classes;
    this.plain = head.plain;
    this.verdicts = head.verdicts;
    this.roles = head.roles;
    this.rows = {};
    this.call = {};
    for (const [table, name, type, at, length] of head.columns)
      (table === "row" ? this.rows : this.call)[name] = new TYPES[type](buffer, at, length);
    this.looks = new Uint8Array(this.count);
    this.callLooks = new Uint8Array(this.calls);
    this.levels = new Uint8Array(this.count);
    this.#work();
    this.#line();
    if (origin >= 0 && this.looks[origin] > 0) this.looks[origin] = this.callLooks[this.rows.call[origin]] = ORIGIN;
  }

  // How each row and call looks, and the height of each row in the plot: the difference, or the norm of a single dump;
  // NaN and infinity are at the top.
  #work() {
    const { state, call, distance, target } = this.rows;
    let measured = false;
    for (let i = 0; i < this.count && !measured; i++) measured = distance[i] === distance[i];
    this.measured = measured;
    for (let i = 0; i < this.count; i++) {
      const look = ROLE_LOOK[state[i] >> 2 & 3] || VERDICT_LOOK[state[i] & 3];
      this.looks[i] = look;
      if (look > this.callLooks[call[i]]) this.callLooks[call[i]] = look;
      const value = measured ? distance[i] : Math.abs(target[i]);
      const power = value > 0 ? Math.log10(value) : LOWEST;
      const part = value !== value && look > 1 ? 1 : measured ? (power - LOWEST) / (HIGHEST - LOWEST) : (power + 6) / 12;
      this.levels[i] = Math.max(0, Math.min(1, part)) * LEVELS;
    }
  }

  // The axis of execution order, from 0 to 1: the steps one after the other, and in a step its ranks side by side, as
  // they ran. `parts` has the part of the axis of each step; `places` where each row begins.
  #line() {
    const firsts = new Int32Array(this.units.length + 1).fill(this.count), longest = new Map();
    for (let c = this.calls - 1; c >= 0; c--) firsts[this.call.unit[c]] = this.call.first[c];
    for (let unit = this.units.length - 1; unit >= 0; unit--) firsts[unit] = Math.min(firsts[unit], firsts[unit + 1]);
    this.units.forEach(({ step }, unit) => longest.set(step, Math.max(longest.get(step) ?? 0, firsts[unit + 1] - firsts[unit])));
    const total = Math.max([...longest.values()].reduce((sum, one) => sum + one, 0), 1);
    this.firsts = firsts;
    this.parts = new Map();
    this.places = new Float32Array(this.count);
    let from = 0;
    for (const [step, rows] of longest) { this.parts.set(step, [from / total, (from + rows) / total]); from += rows; }
    this.units.forEach(({ step }, unit) => {
      const [begin, end] = this.parts.get(step), size = firsts[unit + 1] - firsts[unit];
      for (let at = 0; at < size; at++) this.places[firsts[unit] + at] = begin + (end - begin) * at / size;
    });
  }

  // What the plot and the lanes show of the axis: the zoom, or the step of the chosen unit, or all.
  view(range, unit) { return range || (unit >= 0 ? this.parts.get(this.units[unit].step) : [0, 1]); }
  unit(row) { return this.call.unit[this.rows.call[row]]; }
  end(call) { return call + 1 < this.calls ? this.call.first[call + 1] : this.count; }
  callName(call) { return this.texts[this.call.target[call]] || this.texts[this.call.golden[call]]; }
  name(row) { return this.callName(this.rows.call[row]) + "." + this.texts[this.rows.slot[row]]; }
  // As in `msprobe rows` and in the JSON: the same in every comparison of the same two runs.
  id(row) {
    const call = this.rows.call[row], alone = (this.rows.state[row] & GOLDEN_ONLY) !== 0;
    const name = (alone ? this.texts[this.call.golden[call]] : this.callName(call)) + "." + this.texts[this.rows.slot[row]];
    return `${this.units[this.call.unit[call]].label}/${name}` + (alone ? "@golden" : "");
  }
  withId(id) {
    for (let row = 0; row < this.count; row++) if (this.id(row) === id) return row;
    return -1;
  }
  look(row) { return LOOKS[this.looks[row]]; }
  verdict(row) { return this.verdicts[this.rows.state[row] & 3]; }
  role(row) { return this.roles[this.rows.state[row] >> 2 & 3]; }
  reason(row) { return this.texts[this.rows.reason[row]]; }
  module(call) { return this.texts[this.call.target_module[call]] || this.texts[this.call.golden_module[call]]; }
  // The row of another table with the same name in the same unit: the view survives when the data is read again.
  find(other, row) {
    const name = other.name(row), label = other.units[other.unit(row)].label;
    for (let i = 0; i < this.count; i++)
      if (this.units[this.unit(i)].label === label && this.name(i) === name) return i;
    return -1;
  }
}
