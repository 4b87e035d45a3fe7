// Formats names and numbers for people.

const LONGEST = 2000;

// A name that is too long is shortened in the middle: the beginning says what it is, the end which one.
export function shorten(text, room) {
  if (text.length <= room) return text;
  if (room < 8) return "…" + text.slice(-Math.max(room - 1, 1));
  const tail = Math.ceil((room - 1) * 0.62);
  return text.slice(0, room - 1 - tail) + "…" + text.slice(-tail);
}

export function title(text) {
  return shorten(text, LONGEST);
}

export function figure(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  return value && (size >= 1e6 || size < 1e-3) ? value.toExponential(3) : String(+value.toPrecision(6));
}

// 1234567 as "1,234,567". The browser's own way loads its tables of languages first, which is slow.
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
