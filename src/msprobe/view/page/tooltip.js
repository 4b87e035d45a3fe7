// Tooltips without delay: a text with a line for each fact, next to the pointer, or below what has the focus.

import { byId, el } from "./elements.js";

const GAP = 14;
const said = new WeakMap();

function put(text, x, y) {
  let box = byId("tip");
  if (!box) document.body.append(box = el("div", { id: "tip", role: "tooltip", class: "mono" }));
  box.textContent = text;
  box.hidden = !text;
  if (!text) return;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + GAP, innerWidth - width - 4)) + "px";
  box.style.top = (y + GAP + height > innerHeight ? Math.max(4, y - GAP - height) : y + GAP) + "px";
}

export function hideTip() {
  put("", 0, 0);
}

// What `words` says of the place of the pointer on this element; an empty text hides the tooltip.
export function tipOf(element, words) {
  const known = said.has(element);
  said.set(element, words);
  if (known) return;
  element.addEventListener("pointermove", (event) => put(said.get(element)(event), event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
}

// Every element with data-tip.
export function showTips() {
  const owner = (event) => event.target.closest?.("[data-tip]");
  document.addEventListener("pointermove", (event) => { const one = owner(event); if (one) put(one.dataset.tip, event.clientX, event.clientY); });
  document.addEventListener("pointerout", (event) => { if (owner(event)) hideTip(); });
  document.addEventListener("focusin", (event) => {
    const one = event.target.matches?.(":focus-visible") && owner(event), box = one && one.getBoundingClientRect();
    if (box) put(one.dataset.tip, box.left, box.bottom - GAP + 4); else hideTip();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  document.addEventListener("scroll", hideTip, true);
}
