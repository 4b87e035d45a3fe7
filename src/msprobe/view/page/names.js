// Formats names and numbers for people.

const LONGEST = 2000, LEAST_SLOT = 8;

// A name that is too long is shortened in the middle: the beginning says what it is, the end which one.
export function shorten(text, room) {
  if (text.length <= room) return text;
  if (room < 8) return "…" + text.slice(-Math.max(room - 1, 1));
  const tail = Math.ceil((room - 1) * 0.62);
  return text.slice(0, room - 1 - tail) + "…" + text.slice(-tail);
}

// The name of a row in less space: first without what its neighbours also have (the class of a module, the first word),
// then the outer modules as one letter each. What distinguishes rows stays: numbers, the module, the call and its slot.
export function shortenName(name, room) {
  if (name.length <= room) return name;
  const parts = name.split("."), phase = parts.findIndex((part) => part === "forward" || part === "backward" || part === "parameters_grad");
  if (phase < 2) return shorten(name, room);
  const isModule = parts[0] === "Module" || parts[0] === "Cell", last = isModule ? phase - 2 : phase - 3;
  const text = () => parts.join(".").replaceAll("….", "…");
  if (isModule && phase > 2) parts[phase - 1] = "…";
  if (text().length > room) parts[0] = "…";
  if (text().length > room) parts[phase] = { forward: "fwd", backward: "bwd" }[parts[phase]] || "grad";
  for (let at = 1; at < last && text().length > room; at++) if (!/^\d+$/.test(parts[at])) parts[at] = parts[at].slice(0, 1);
  const slot = parts.slice(isModule ? phase + 2 : phase + 1).join("."), call = text().length - slot.length;
  return call + LEAST_SLOT > room ? shorten(text(), room) : text().slice(0, call) + shorten(slot, room - call);
}

// The step and rank of a unit. A run of one process has no number of a rank.
export function unitName({ label }) {
  return label.replace(/\/rank$/, "");
}

// A path without the directory in which the run was started.
export function shortPath(path, directories) {
  const inside = directories.find((directory) => path.startsWith(directory.replace(/\/?$/, "/")));
  return inside ? path.slice(inside.replace(/\/?$/, "/").length) : path;
}

// A path of an installed package: the package and the file.
export function packagePath(path) {
  const inside = path.split(/[\\/](?:site|dist)-packages[\\/]/), parts = inside.at(-1).split(/[\\/]/);
  return inside.length > 1 && parts.length > 3 ? `${parts[0]}/…/${parts.at(-1)}` : inside.at(-1);
}

export function title(text) {
  return shorten(text, LONGEST);
}

export function figure(value, digits = 6) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  return value && (size >= 1e6 || size < 1e-3) ? value.toExponential(3).replace(/\.?0*e\+?/, "e") : String(+value.toPrecision(digits));
}

// 1234567 as "1,234,567". The browser's own function first loads its language tables, which is slow.
export function counted(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

// `a*b?c` against a text, without regular expressions: a hostile name cannot make it slow.
export function globMatches(pattern, text) {
  let p = 0, t = 0, star = -1, mark = 0;
  while (t < text.length) {
    if (p < pattern.length && (pattern[p] === "?" || pattern[p] === text[t]) && pattern[p] !== "*") { p++; t++; }
    else if (p < pattern.length && pattern[p] === "*") { star = p++; mark = t; }
    else if (star >= 0) { p = star + 1; t = ++mark; }
    else return false;
  }
  while (pattern[p] === "*") p++;
  return p === pattern.length;
}
