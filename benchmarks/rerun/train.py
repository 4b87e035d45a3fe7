"""The script that `msprobe again` and `msprobe prove` run for the measurement: ten steps of the small GPT.

python -m benchmarks.rerun.train [EPS]        EPS of one LayerNorm: the planted fault
"""

from __future__ import annotations

import sys

import torch
from benchmarks import models

STEPS = 10


def main() -> None:
    torch.set_num_threads(1)
    models.BATCH = 16
    model, step = models.gpt(4)
    if len(sys.argv) > 1:
        model.blocks[2].ln1.eps = float(sys.argv[1])
    for _ in range(STEPS):
        step()


if __name__ == "__main__":
    main()
