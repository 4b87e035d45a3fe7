"""Judgements as tables: by kind, by model, and every miss with what was printed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import transformers
from judge import ALARM, BROKEN, MISSED, POOR, RIGHT, SAME, WRONG, Judgement

from msprobe import __version__

DOCS = Path(__file__).parents[2] / "docs" / "quality.md"
KNOWN = Path(__file__).with_name("known_misses.json")
START, END = "<!-- results -->", "<!-- end of results -->"
FAULT_COLUMNS = (RIGHT, POOR, WRONG, MISSED, BROKEN)
CLEAN_COLUMNS = (SAME, ALARM, BROKEN)
Results = list[tuple[Judgement, float]]


def text(results: Results) -> str:
    faults = [one for one, _ in results if one.kind != "clean"]
    pairs = [one for one, _ in results if one.kind == "clean"]
    parts = []
    if faults:
        parts.append("Faults by kind\n" + _table(faults, FAULT_COLUMNS, lambda one: one.kind))
        parts.append("Faults by model\n" + _table(faults, FAULT_COLUMNS, lambda one: one.model))
    if pairs:
        parts.append("Clean pairs by model\n" + _table(pairs, CLEAN_COLUMNS, lambda one: one.model))
    misses = [one for one in [*faults, *pairs] if not one.good]
    if misses:
        parts.append("Misses\n" + "\n".join(map(describe, misses)))
    seconds = sum(spent for _, spent in results)
    slowest = max(results, key=lambda result: result[1])
    slow = f"slowest {slowest[0].case} {slowest[1]:.1f} s"
    parts.append(f"{len(results)} cases, {seconds:.0f} s in all processes; {slow}")
    return "\n\n".join(parts)


def describe(one: Judgement) -> str:
    lines = [f"- {one.case} ({one.kind}, effect {one.effect:.1g}): {one.verdict}: {one.why}"]
    if one.expected:
        lines.append(f"    expected: {one.expected}")
    if one.said:
        lines.append(f"    said:     {one.said}")
    return "\n".join(lines)


def _groups(judgements: list[Judgement], key: Callable[[Judgement], str]) -> dict[str, Counter[str]]:
    groups: dict[str, Counter[str]] = {}
    for one in judgements:
        groups.setdefault(key(one), Counter())[one.verdict] += 1
    groups["all"] = sum(groups.values(), Counter())
    return groups


def _table(judgements: list[Judgement], columns: tuple[str, ...], key: Callable[[Judgement], str]) -> str:
    rows = [["", "cases", *columns]]
    for name, counts in _groups(judgements, key).items():
        rows.append([name, str(sum(counts.values())), *(str(counts[column] or "") for column in columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:]))
        lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def markdown(results: Results) -> str:
    """The tables and the misses for docs/quality.md."""
    judgements = [one for one, _ in results]
    faults = [one for one in judgements if one.kind != "clean"]
    pairs = [one for one in judgements if one.kind == "clean"]
    right, same = sum(one.good for one in faults), sum(one.good for one in pairs)
    lines = [
        f"{right} of {len(faults)} faults are named rightly ({right / len(faults):.1%});"
        f" {len(pairs) - same} of {len(pairs)} clean pairs are reported.",
        f"msprobe {__version__}, PyTorch {torch.__version__}, transformers {transformers.__version__}, {date.today()}.",
        "",
        *_markdown_table(faults, FAULT_COLUMNS, lambda one: one.kind, "kind"),
        "",
        *_markdown_table(faults, FAULT_COLUMNS, lambda one: one.model, "model"),
        "",
        *_markdown_table(pairs, CLEAN_COLUMNS, lambda one: one.model, "clean pairs"),
        "",
    ]
    reasons = known_misses()
    misses = [one for one in [*faults, *pairs] if not one.good]
    if misses:
        lines += ["### Misses", "", "| case | verdict | msprobe said | why |", "|---|---|---|---|"]
    for one in misses:
        cells = (one.case, one.verdict, one.said or one.why, reasons.get(one.case, one.why))
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(
    judgements: list[Judgement], columns: tuple[str, ...], key: Callable[[Judgement], str], title: str
) -> list[str]:
    lines = ["| " + " | ".join([title, "cases", *columns]) + " |", "|---" * (len(columns) + 2) + "|"]
    for name, counts in _groups(judgements, key).items():
        cells = [name, str(sum(counts.values())), *(str(counts[column] or "") for column in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def known_misses() -> dict[str, str]:
    """Cases that are known to be judged wrong today, and why."""
    return json.loads(KNOWN.read_text())


def write_docs(results: Results) -> None:
    """Puts the results between the two markers of docs/quality.md."""
    before, rest = DOCS.read_text().split(START)
    _, after = rest.split(END)
    DOCS.write_text(f"{before}{START}\n{markdown(results)}{END}{after}")
