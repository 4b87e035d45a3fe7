"""What the lines of source.json cost: python benchmarks/source_lines.py [ROUNDS]

CPU time of the same collected steps of a small GPT with and without them, in turns in one process. Prints the median of
the ratios of the rounds, and their quartiles.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from models import gpt

from msprobe.dump.source_lines import SourceLines
from msprobe.pytorch import PrecisionDebugger

STEPS = 3


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    model, train = gpt(2)
    usual = SourceLines.add

    def collect(with_lines: bool) -> float:
        SourceLines.add = usual if with_lines else lambda self, frames: ("", "")  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as directory:
            settings: dict[str, Any] = {"task": "statistics", "level": "mix"}
            debugger = PrecisionDebugger(dump_path=directory, **settings)
            start = time.process_time()
            for _ in range(STEPS):
                debugger.start(model)
                train()
                debugger.stop()
                debugger.step()
            return time.process_time() - start

    collect(True), collect(False)
    ratios = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        found = {with_lines: collect(with_lines) for with_lines in order}
        ratios.append(found[True] / found[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"with source.json / without: {middle:.3f} (quartiles {low:.3f} to {high:.3f}), {rounds} rounds")


if __name__ == "__main__":
    main()
