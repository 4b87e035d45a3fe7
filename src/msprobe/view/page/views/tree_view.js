// Two module trees that open together: the first mark of a module is its forward, the second its backward.

import { refilter } from "../filter.js";
import { byId, dot, el } from "../elements.js";
import { shorten, title } from "../names.js";
import { on, set, state } from "../state.js";
import { INTRODUCED, LOOKS } from "../table_data.js";
import { t, verdictWord } from "../words.js";

const MOST_CHILDREN = 2000, TWIST = 12, INDENT = 4, LETTER = 7.25;
let natural = null, nodes = new Map(), opened = new Set([""]), marked = "";

function parentOf(path) {
  const cut = path.lastIndexOf(".");
  return cut < 0 ? "" : path.slice(0, cut);
}

function nodeOf(path) {
  return { path, golden: path, children: new Set(), own: [0, 0], worst: [0, 0], inTarget: false, inGolden: false };
}

// Every module by its path in the target; a module that only the golden run has is under its own path.
function build() {
  const { texts, call, calls, callLooks } = state.table, renamed = new Map(), found = new Map();
  nodes = new Map([["", { ...nodeOf(""), inTarget: true, inGolden: true }]]);
  for (let c = 0; c < calls; c++)
    if (call.target_module[c] && call.golden_module[c]) renamed.set(call.golden_module[c], call.target_module[c]);
  for (let c = 0; c < calls; c++) {
    if (state.unit >= 0 && call.unit[c] !== state.unit) continue;
    const target = call.target_module[c], golden = call.golden_module[c], key = target || renamed.get(golden) || golden;
    let leaf = found.get(key);
    if (!leaf) { leaf = ensure(texts[key]); found.set(key, leaf); }
    if (target) leaf.inTarget = true;
    if (golden) { leaf.inGolden = true; leaf.golden = texts[golden]; }
    const side = call.direction[c];
    if (leaf.own[side] <= callLooks[c]) leaf.own[side] = callLooks[c] + 1;
  }
  [...found.values()].forEach(tellParents);
}

function tellParents(leaf) {
  for (let node = leaf; node; node = node.path ? nodes.get(parentOf(node.path)) : null) {
    node.inTarget ||= leaf.inTarget;
    node.inGolden ||= leaf.inGolden;
    for (const side of [0, 1]) node.worst[side] = Math.max(node.worst[side], node === leaf ? leaf.own[side] : Math.min(leaf.own[side], INTRODUCED + 1));
  }
}

function ensure(path) {
  let node = nodes.get(path);
  if (!node) {
    node = nodeOf(path);
    nodes.set(path, node);
    ensure(parentOf(path)).children.add(path);
  }
  return node;
}

function visible() {
  const found = [];
  natural ||= new Intl.Collator("en", { numeric: true }); // slow to make: not before the first paint
  const walk = (path, depth) => {
    const node = nodes.get(path), children = [...node.children].sort(natural.compare);
    found.push({ node, depth, leaf: !children.length });
    if (opened.has(path)) for (const child of children.slice(0, MOST_CHILDREN)) walk(child, depth + 1);
  };
  walk("", 0);
  return found;
}

function marks(node) {
  const one = (value) => dot(value ? LOOKS[value - 1] : "none");
  const [forward, backward] = node.worst;
  return [forward ? one(forward) : null, backward > 1 && backward !== forward || backward && !forward ? one(backward) : null];
}

function tip(node, kind) {
  const words = [["forward", node.worst[0]], ["backward", node.worst[1]]].filter(([, value]) => value).map(([key, value]) => `${t(key)}: ${verdictWord(LOOKS[value - 1], state.answer.kind)}`);
  return title([`${node.path || t("model")} ${kind}`, ...words].join("\n"));
}

function label(node) {
  return node.path ? node.path.slice(node.path.lastIndexOf(".") + 1) : t("model");
}

function render() {
  const two = state.answer.golden !== null, tree = byId("tree"), focused = document.activeElement?.dataset?.path;
  const wide = (tree.clientWidth - TWIST) / (two ? 2 : 1) - 9; // the columns differ by the twist
  const lines = visible().map(({ node, depth, leaf }) => {
    const open = opened.has(node.path), kind = state.table.classes[node.path] || "";
    const cell = (name, there, twist) => {
      const inner = el("span", { class: "mono" }), dots = marks(node).filter(Boolean), left = Math.floor((wide - depth * INDENT - dots.length * 15) / LETTER);
      inner.style.paddingLeft = depth * INDENT + "px";
      if (twist) inner.append(el("span", { class: "twist", text: leaf ? "" : open ? "▾" : "▸" }));
      if (there) inner.append(...dots, shorten(name, Math.max(left, 6)), left - name.length > kind.length ? el("span", { class: "dim", text: " " + kind }) : "");
      return inner;
    };
    const other = node.golden ? node.golden.slice(node.golden.lastIndexOf(".") + 1) : label(node);
    const line = el("div", {
      class: "node" + (state.module === node.path && node.path ? " picked" : ""), role: "treeitem", tabindex: (focused ?? state.module) === node.path ? "0" : "-1",
      "aria-level": depth + 1, "aria-expanded": leaf ? null : String(open), "aria-selected": String(state.module === node.path), "data-tip": tip(node, kind), data: { path: node.path },
    }, cell(label(node), node.inTarget, true), two ? cell(node.path ? other : t("model"), node.inGolden, false) : null);
    line.onclick = (event) => event.target.className === "twist" ? toggle(node.path) : choose(node.path);
    line.ondblclick = () => toggle(node.path);
    return line;
  });
  const head = two ? [el("span", { class: "treehead", text: t("target"), "aria-hidden": "true" }), el("span", { class: "treehead", text: t("golden"), "aria-hidden": "true" })] : [];
  byId("treehead").replaceChildren(...head);
  tree.className = byId("treehead").className = "twin" + (two ? "" : " single");
  tree.replaceChildren(...lines);
  if (!tree.querySelector("[tabindex='0']") && tree.firstChild) tree.firstChild.tabIndex = 0;
  if (focused !== undefined) [...tree.children].find((one) => one.dataset.path === focused)?.focus();
}

function toggle(path) {
  opened.has(path) ? opened.delete(path) : opened.add(path);
  render();
}

export function openTo(path) {
  for (let up = path; up; up = parentOf(up)) opened.add(parentOf(up));
}

function choose(path) {
  set("filters", { module: state.module === path ? "" : path, range: null });
  refilter();
}

// A module that was chosen elsewhere.
export function chooseModule(path) {
  openTo(path);
  render();
  choose(path);
}

// Another module was chosen: only the mark moves. Typing in the search changes nothing here.
function mark() {
  if (state.module === marked) return;
  marked = state.module;
  for (const line of byId("tree").children) {
    const chosen = marked !== "" && line.dataset.path === marked;
    line.classList.toggle("picked", chosen);
    line.setAttribute("aria-selected", String(chosen));
  }
}

function keys(event) {
  const tree = byId("tree"), here = document.activeElement, lines = [...tree.children], at = lines.indexOf(here);
  if (at < 0) return;
  const path = here.dataset.path, move = (to) => { if (lines[to]) { here.tabIndex = -1; lines[to].tabIndex = 0; lines[to].focus(); } };
  if (event.key === "ArrowDown") move(at + 1);
  else if (event.key === "ArrowUp") move(at - 1);
  else if (event.key === "ArrowRight") { if (!opened.has(path)) toggle(path); else move(at + 1); }
  else if (event.key === "ArrowLeft") { if (opened.has(path)) toggle(path); else move(lines.findIndex((one) => one.dataset.path === parentOf(path))); }
  else if (event.key === "Enter" || event.key === " ") choose(path);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function refresh() {
  build();
  render();
}

export function showTree() {
  const paint = () => byId("left").replaceChildren(
    el("div", { id: "treehead" }), el("div", { id: "tree", role: "tree", "aria-label": t("modules"), onkeydown: keys }));
  paint();
  on("language", () => { paint(); refresh(); });
  on("data", () => {
    const row = state.answer.row;
    if (row >= 0) { const path = state.table.module(state.table.rows.call[row]); openTo(path); opened.add(path); }
    refresh();
  });
  on("filters", mark);
  on("unit", refresh);
  on("size", render);
}
