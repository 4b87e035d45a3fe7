// What `msprobe prove` found: what was grafted, what became the same, and the share of each cause.

import { el } from "../elements.js";
import { counted, figure, shortPath, title } from "../names.js";
import { inLanguage } from "../sentences.js";
import { state } from "../state.js";
import { t } from "../words.js";

function bar(share) {
  if (share === null) return el("td", { text: "–" });
  const full = el("span", { class: "share" }), part = el("i", { class: share < 0 ? "minus" : "" });
  part.style.width = Math.min(100, Math.abs(share) * 100) + "%";
  full.append(part);
  return el("td", { "data-tip": `${t("share_of")} ${figure(share * 100, 4)} %` }, full, ` ${Math.round(share * 100)} %`);
}

// How many rows differ before a graft and after it.
function left(before, after) {
  if (after === null) return "–";
  return (before === null ? "" : counted(before) + " → ") + counted(after) + (after === 0 ? " ✓" : "");
}

export function proofOf(proof) {
  let before = proof.differing;
  const rows = proof.causes.map((cause) => {
    const cells = [el("td", { class: "mono" }, title(cause.name), cause.source ? el("div", { class: "dim", text: title(shortPath(cause.source, state.answer.directory)) }) : null), el("td", { text: title(inLanguage(cause.sentence)) }),
      el("td", { class: "n", text: `${figure(cause.ran)} / ${figure(cause.changed)}` }), el("td", { class: "n", text: left(before, cause.left) }), bar(cause.share)];
    before = cause.left;
    return el("tr", {}, ...cells);
  });
  return el("table", { id: "proof" }, el("thead", {}, el("tr", {}, ...["grafted", "reason", "fired", "left", "share"].map((key) => el("th", { scope: "col", text: t("proof." + key) })))), el("tbody", {}, ...rows));
}
