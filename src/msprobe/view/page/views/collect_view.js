// "Collect this next": the chosen rows as a config.json that dumps the tensors of just these calls.

import { byId, copy, el, say } from "../elements.js";
import { shorten, title } from "../names.js";
import { goTo } from "../navigate.js";
import { on, set, state } from "../state.js";
import { t } from "../words.js";

export function configOf(table, picks) {
  const names = new Set(), steps = new Set(), ranks = new Set();
  for (const row of picks) {
    const call = table.rows.call[row], unit = table.units[table.call.unit[call]];
    names.add(table.callName(call));
    if (unit.step !== null) steps.add(unit.step);
    if (unit.rank !== null) ranks.add(unit.rank);
  }
  const sorted = (values) => [...values].sort((a, b) => a - b);
  return { task: "tensor", dump_path: "./dump_suspects", rank: sorted(ranks), step: sorted(steps), level: "mix", tensor: { scope: [], list: [...names], data_mode: ["all"] } };
}

function render() {
  const box = byId("collect"), { table, picks } = state;
  if (!table) return;
  if (!picks.size) { box.replaceChildren(el("p", { text: t("nothing_chosen") })); return; }
  const text = JSON.stringify(configOf(table, picks), null, 4) + "\n";
  const save = () => {
    const link = el("a", { href: "data:application/json;charset=utf-8," + encodeURIComponent(text), download: "config.json" });
    link.click();
  };
  box.replaceChildren(el("h2", { text: t("config") }),
    el("div", { class: "buttons" }, el("button", { text: t("copy_text"), onclick: async () => say(t(await copy(text) ? "copied" : "not_copied")) }), el("button", { text: t("download"), onclick: save }), el("button", { id: "clear_picks", text: t("clear"), onclick: () => { picks.clear(); set("picks", {}); } })),
    el("pre", { id: "config", tabindex: "0", text }),
    el("div", { class: "links" }, ...[...picks].slice(0, 500).map((row) => el("button", { class: "mono", title: title(table.name(row)), text: shorten(table.name(row), 120), onclick: () => goTo(row) }))));
}

export function showCollecting() {
  for (const event of ["picks", "language", "data"]) on(event, render);
}
