"""Judgements as tables: by kind, by model, and every miss with what was printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from judge import ALARM, BROKEN, MISSED, POOR, RIGHT, SAME, WRONG, Judgement

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


def _table(judgements: list[Judgement], columns: tuple[str, ...], key: Callable[[Judgement], Any]) -> str:
    rows = [["", "cases", *columns]]
    groups: dict[str, Counter[str]] = {}
    for one in judgements:
        groups.setdefault(key(one), Counter())[one.verdict] += 1
    groups["all"] = sum(groups.values(), Counter())
    for name, counts in groups.items():
        rows.append([name, str(sum(counts.values())), *(str(counts[column] or "") for column in columns)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:]))
        lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)
