"""Turns measurements into Markdown tables: what `make bench` prints and what docs/overhead.md holds.

Every table of ratios also says how many records and tensors each tool dumped, because a ratio between two
tools means something only where both did the same work.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Optional

from lockstep import Case, RunSummary

# CPU-time ratios that this project set itself as upper limits.
AIMS = {
    "L0/statistics": 1.12,
    "L1/statistics": 1.50,
    "mix/statistics": 1.60,
    "L0/md5": 1.15,
    "L1/md5": 1.75,
    "mix/md5": 1.85,
    "L0/tensor": 1.7,
    "L1/tensor": 3.5,
    "mix/tensor": 3.7,
    "L2/statistics": 1.9,
    "idle": 1.00,
}

METHOD = """\
A GPT ({layers} layers, width 256, sequence 128, batch 4, AdamW) is trained with the dump on for the whole step:
forward, backward and optimizer. Each variant is a process of its own; the bare one never imports a tool. All
processes stay alive, exactly one runs at a time, one step each a round, and a ratio is taken between steps
of the same round; the table has the median of {rounds} rounds after two for warming up. CPU time is that of all threads
of the process, and what a writer thread does after the step is charged to the step.
{threads} OpenMP threads, {waiting}. The peer is mindstudio-probe with `risk_level: ALL`. `bare again` is a
second bare process, measured like a tool: its distance from 1.00 is the noise of the machine.
"""

Accounts = dict[str, RunSummary]


def machine() -> str:
    """The line that says where and when, without which the figures mean nothing."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    today = datetime.date.today().isoformat()
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {today}"


def method(layers: int, rounds: int, threads: int, spin: bool) -> str:
    waiting = "waiting actively (spinning counts as CPU time)" if spin else "waiting passively"
    return METHOD.format(layers=layers, rounds=rounds, threads=threads, waiting=waiting)


def overhead(results: dict[Case, Accounts], tools: list[str]) -> str:
    """One row a case: ratio, its range, and what was dumped."""
    head = ["case", "bare ms"]
    for tool in tools:
        head += [f"{tool}", "range", "wall", "records", "tensors"]
    head += (["same names"] if len(tools) > 1 else []) + ["bare again", "aim"]
    rows = []
    for case, accounts in results.items():
        bare = accounts["bare"]
        row = [case.name, milliseconds(bare.median_cpu())]
        for tool in tools:
            row += tool_cells(accounts[tool], bare, idle=case.idle)
        if len(tools) > 1:
            row.append("-" if case.idle else same_names([accounts[tool] for tool in tools]))
        rows.append([*row, number(accounts["bare again"].ratio(bare)), number(AIMS.get(case.name))])
    return table(head, rows)


def tool_cells(account: RunSummary, bare: RunSummary, idle: bool) -> list[str]:
    if account.error:
        return ["failed", "-", "-", "-", "-"]
    ratios = account.ratios(bare)
    dumped = ["-", "-"] if idle else [str(len(account.report["names"])), str(account.report["tensors"])]
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    return [f"**{number(account.ratio(bare))}**", spread, number(account.ratio(bare, "wall")), *dumped]


def same_names(accounts: list[RunSummary]) -> str:
    if any(account.error for account in accounts):
        return "-"
    return str(len(set.intersection(*(set(account.report["names"]) for account in accounts))))


def differences(results: dict[Case, Accounts], tools: list[str]) -> str:
    """Which records only one of the two tools has, by API or module class, so that nobody has to believe."""
    lines = []
    for case, accounts in results.items():
        pair = [accounts[tool] for tool in tools]
        if case.idle or any(account.error for account in pair):
            continue
        kinds = [Counter(kind(name) for name in account.report["names"]) for account in pair]
        for tool, extra in ((tools[0], kinds[0] - kinds[1]), (tools[1], kinds[1] - kinds[0])):
            listed = ", ".join(f"{name} {count}" for name, count in extra.most_common(12))
            lines.append(f"- {case.name}, only {tool}: {listed or 'nothing'}")
    return "\n".join(lines)


def kind(name: str) -> str:
    """A record's name without its numbers and without the path of its module."""
    parts = [part for part in name.split(".") if not part.isdigit()]
    return ".".join([parts[0], *parts[-2:]])


def sizes(results: dict[Case, Accounts], tools: list[str]) -> str:
    """Cost over model size: in proportion when the extra time a record does not grow."""
    head = ["layers", "bare ms"]
    for tool in tools:
        head += [tool, "extra ms", "records", "extra µs a record"]
    rows = []
    for case, accounts in results.items():
        bare = accounts["bare"]
        row = [str(case.layers), milliseconds(bare.median_cpu())]
        for tool in tools:
            account = accounts[tool]
            ratio, base = account.ratio(bare), bare.median_cpu()
            if ratio is None or base is None:
                row += ["failed", "-", "-", "-"]
                continue
            extra, records = (ratio - 1) * base, len(account.report["names"])
            row += [number(ratio), milliseconds(extra), str(records), f"{extra / max(records, 1) * 1e6:.0f}"]
        rows.append(row)
    return table(head, rows)


def disk(results: dict[Case, Accounts], tools: list[str]) -> str:
    """Bytes of one step of the tensor task, hard links counted once."""
    head = ["case"]
    for tool in tools:
        head += [f"{tool} MiB", "on disk MiB", "files"]
    head += ["share"] if len(tools) > 1 else []
    rows = []
    for case, accounts in results.items():
        row, allocated = [case.name], []
        for tool in tools:
            account = accounts[tool]
            if account.error:
                row += ["failed", "-", "-"]
                continue
            row += [mebibytes(account.report["bytes"]), mebibytes(account.report["allocated"])]
            row.append(str(account.report["files"]))
            allocated.append(account.report["allocated"])
        if len(tools) > 1:
            row.append(f"{allocated[0] / allocated[1]:.2f}" if len(allocated) == 2 and allocated[1] else "-")
        rows.append(row)
    return table(head, rows)


def memory(results: dict[int, Accounts], tools: list[str]) -> str:
    """Highest resident memory above the bare process's, over the number of steps."""
    rows = []
    for steps, accounts in results.items():
        bare = accounts["bare"].report["peak_rss"]
        row = [str(steps), mebibytes(bare)]
        for tool in tools:
            account = accounts[tool]
            row.append("failed" if account.error else mebibytes(account.report["peak_rss"] - bare))
        rows.append(row)
    return table(["steps", "bare MiB", *(f"{tool} extra MiB" for tool in tools)], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in [head, *rows]]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def milliseconds(seconds: Optional[float]) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f}"


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f}"
