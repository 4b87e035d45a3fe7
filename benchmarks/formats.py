"""What measuring the damage of a low-precision format costs, beside the plain statistics of the same tensor.

python benchmarks/formats.py [--rounds 15] [--side 2048]

A float32 matrix of normally distributed numbers. Every round measures everything once, at each level of CPU
instructions; a ratio is taken inside the round, of CPU times, and the median over the rounds is printed. Formats with
blocks include both orientations, and each ratio includes what formats share (`shared`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

import numpy as np
import tables

from msprobe import stats
from msprobe.stats import STATS, dtypes
from msprobe.stats._kernel import extent, select
from msprobe.stats.damage import measure_damage
from msprobe.stats.formats import BY_NAME

FORMATS = ("bf16", "fp8-e4m3", "fp8-e4m3-row", "fp8-e4m3-1x128", "fp8-e4m3-128x128", "mxfp8", "mxfp4", "nvfp4")
PLAIN = "plain statistics"


def jobs(side: int) -> dict[str, Callable[[], object]]:
    matrix = np.random.default_rng(0).normal(size=(side, side)).astype(np.float32)
    where, code = matrix.__array_interface__["data"][0], dtypes.BY_NAME["float32"].code
    measured: dict[str, Callable[[], object]] = {
        PLAIN: lambda: stats.measure(where, code, (matrix.size,), (1,), STATS, 1),
        "shared": lambda: extent(matrix),
    }
    for name in FORMATS:
        measured[name] = lambda form=BY_NAME[name]: measure_damage(matrix, form)  # type: ignore[misc]
    measured["nvfp4, weights"] = lambda: measure_damage(matrix, BY_NAME["nvfp4"], weight=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--side", type=int, default=2048)
    args = parser.parse_args()
    measured = jobs(args.side)
    levels = {select(level): level for level in (2, 1, 0)}
    first = next(iter(levels))
    times: dict[tuple[str, str], list[float]] = {(name, level): [] for name in measured for level in levels}
    for _ in range(args.rounds):
        for level in levels:
            select(levels[level])
            for name, job in measured.items():
                start = time.thread_time()
                job()
                times[name, level].append(time.thread_time() - start)
    rows = []
    for name in measured:
        row = [name]
        for level in levels:
            pairs = zip(times[name, level], times[PLAIN, level])
            row.append(f"{statistics.median(one / plain for one, plain in pairs):.1f}")
        row.append(f"{statistics.median(times[name, first]) / args.side**2 * 1e9:.2f} ns")
        rows.append(row)
    print(tables.machine())
    print(tables.table(["", *levels, f"an element, {first}"], rows))


if __name__ == "__main__":
    main()
