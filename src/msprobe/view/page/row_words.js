// A row in words: its numbers in the table, and its tooltip.

import { figure, title } from "./names.js";
import { inLanguage } from "./sentences.js";
import { state } from "./state.js";
import { t, verdictWord } from "./words.js";

export function figures(row, side) {
  const { table } = state, plain = table.plain[row];
  return plain ? plain[side === "target" ? 0 : 1] : figure(table.rows[side][row], 5);
}

// The complete name, the state, and the numbers of both sides.
export function tipOfRow(row) {
  const { table } = state, distance = figure(table.rows.distance[row], 4), reason = inLanguage(table.reason(row));
  const look = table.look(row), verdict = verdictWord(look, state.answer.kind);
  const lines = [table.name(row), look === "pass" && distance ? `${verdict}: ${t("means.pass")}` : verdict, `${t("target")} ${figures(row, "target") || "–"}`];
  if (state.answer.golden !== null) lines.push(`${t("golden")} ${figures(row, "golden") || "–"}`);
  if (distance) lines.push(`${t("relative")} ${distance}`);
  return title([...lines, reason].filter(Boolean).join("\n"));
}
