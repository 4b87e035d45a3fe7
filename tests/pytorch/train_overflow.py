"""Run on two ranks, for test_overflow_ranks: argument 1 is the configuration, 2 what overflows."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from msprobe.pytorch import PrecisionDebugger


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    debugger = PrecisionDebugger(sys.argv[1])
    debugger.start()
    value = torch.full((4,), 1.0 + rank)
    if sys.argv[2] == "on one rank":
        value = torch.log(value - 2 * rank)  # rank 1: log(0)
    else:
        value = value * 1.5e38
    dist.all_reduce(value)
    torch.relu(value)
    debugger.stop()
    debugger.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
