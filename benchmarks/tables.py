"""Formats measurements as Markdown tables, for `make bench` and for docs/overhead.md.

Every table of ratios also has the number of records and tensors of each tool: two tools can be compared only if they
do the same work.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Optional

from lockstep import Case, Measurement

# Our upper limits for the ratios of CPU time.
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
The benchmark trains a GPT ({layers} layers, width 256, sequence 128, batch 4, AdamW) and dumps the complete step:
forward, backward and optimizer. Each variant is a separate process; the bare process never imports a tool. All
processes stay alive, exactly one runs at a time, and each runs one step per round. A ratio compares steps of the same
round; the table has the median of {rounds} rounds, after two rounds for warming up. CPU time is that of all threads of
the process; work of a writer thread after the step counts too.
{threads} OpenMP threads, {waiting}. The peer is mindstudio-probe with `risk_level: ALL`. `bare again` is a second bare
process, measured like a tool: its distance from 1.00 is the noise of the machine.
"""

Measurements = dict[str, Measurement]


def machine() -> str:
    """The machine, the versions and the date of the figures."""
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


def overhead(results: dict[Case, Measurements], tools: list[str]) -> str:
    """One row per case: the ratio, its range, and the number of records and tensors."""
    head = ["case", "bare ms"]
    for tool in tools:
        head += [f"{tool}", "range", "wall", "records", "tensors"]
    head += (["same names"] if len(tools) > 1 else []) + ["bare again", "aim"]
    rows = []
    for case, measurements in results.items():
        bare = measurements["bare"]
        row = [case.name, milliseconds(bare.median_cpu())]
        for tool in tools:
            row += tool_cells(measurements[tool], bare, idle=case.idle)
        if len(tools) > 1:
            row.append("-" if case.idle else same_names([measurements[tool] for tool in tools]))
        rows.append([*row, number(measurements["bare again"].ratio(bare)), number(AIMS.get(case.name))])
    return table(head, rows)


def tool_cells(measurement: Measurement, bare: Measurement, idle: bool) -> list[str]:
    if measurement.error:
        return ["failed", "-", "-", "-", "-"]
    ratios = measurement.ratios(bare)
    dumped = ["-", "-"] if idle else [str(len(measurement.report["names"])), str(measurement.report["tensors"])]
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    return [f"**{number(measurement.ratio(bare))}**", spread, number(measurement.ratio(bare, "wall")), *dumped]


def same_names(measurements: list[Measurement]) -> str:
    if any(measurement.error for measurement in measurements):
        return "-"
    return str(len(set.intersection(*(set(measurement.report["names"]) for measurement in measurements))))


def differences(results: dict[Case, Measurements], tools: list[str]) -> str:
    """The records that only one of the two tools has, by API or module class."""
    lines = []
    for case, measurements in results.items():
        pair = [measurements[tool] for tool in tools]
        if case.idle or any(measurement.error for measurement in pair):
            continue
        kinds = [Counter(kind(name) for name in measurement.report["names"]) for measurement in pair]
        for tool, extra in ((tools[0], kinds[0] - kinds[1]), (tools[1], kinds[1] - kinds[0])):
            listed = ", ".join(f"{name} {count}" for name, count in extra.most_common(12))
            lines.append(f"- {case.name}, only {tool}: {listed or 'nothing'}")
    return "\n".join(lines)


def kind(name: str) -> str:
    """The name of a record without numbers and without the path of its module."""
    parts = [part for part in name.split(".") if not part.isdigit()]
    return ".".join([parts[0], *parts[-2:]])


def sizes(results: dict[Case, Measurements], tools: list[str]) -> str:
    """The cost by model size. It is proportional if the extra time per record does not grow."""
    head = ["layers", "bare ms"]
    for tool in tools:
        head += [tool, "extra ms", "records", "extra µs per record"]
    rows = []
    for case, measurements in results.items():
        bare = measurements["bare"]
        row = [str(case.layers), milliseconds(bare.median_cpu())]
        for tool in tools:
            measurement = measurements[tool]
            ratio, base = measurement.ratio(bare), bare.median_cpu()
            if ratio is None or base is None:
                row += ["failed", "-", "-", "-"]
                continue
            extra, records = (ratio - 1) * base, len(measurement.report["names"])
            row += [number(ratio), milliseconds(extra), str(records), f"{extra / max(records, 1) * 1e6:.0f}"]
        rows.append(row)
    return table(head, rows)


def disk(results: dict[Case, Measurements], tools: list[str]) -> str:
    """The size of one step of the tensor task. Hard links count once."""
    head = ["case"]
    for tool in tools:
        head += [f"{tool} MiB", "on disk MiB", "files"]
    head += ["share"] if len(tools) > 1 else []
    rows = []
    for case, measurements in results.items():
        row, allocated = [case.name], []
        for tool in tools:
            measurement = measurements[tool]
            if measurement.error:
                row += ["failed", "-", "-"]
                continue
            row += [mebibytes(measurement.report["bytes"]), mebibytes(measurement.report["allocated"])]
            row.append(str(measurement.report["files"]))
            allocated.append(measurement.report["allocated"])
        if len(tools) > 1:
            row.append(f"{allocated[0] / allocated[1]:.2f}" if len(allocated) == 2 and allocated[1] else "-")
        rows.append(row)
    return table(head, rows)


def memory(results: dict[int, Measurements], tools: list[str]) -> str:
    """Peak resident memory above that of the bare process, by number of steps."""
    rows = []
    for steps, measurements in results.items():
        bare = measurements["bare"].report["peak_rss"]
        row = [str(steps), mebibytes(bare)]
        for tool in tools:
            measurement = measurements[tool]
            row.append("failed" if measurement.error else mebibytes(measurement.report["peak_rss"] - bare))
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
