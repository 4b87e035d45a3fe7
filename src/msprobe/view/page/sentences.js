// The sentences of a comparison: the data have their Chinese text beside the English one.

import { inChinese } from "./words.js";

const chinese = new Map();

export function learn(texts) {
  for (const [english, text] of Object.entries(texts || {})) chinese.set(english, text);
}

// Names and text of other programs stay as they are.
export function inLanguage(text) {
  return inChinese() && chinese.has(text) ? chinese.get(text) : text;
}
