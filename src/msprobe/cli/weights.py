"""`msprobe weights`: which tensors of two checkpoints, or of a checkpoint and an engine, differ, and how."""

from __future__ import annotations

import argparse
from pathlib import Path

EPILOG = """examples:
  msprobe weights ./trainer_checkpoint ./other_checkpoint
  msprobe weights ./trainer_checkpoint ./engine_weights --older ./checkpoint_of_the_step_before
weights: safetensors (one file or sharded), .pt, a distributed checkpoint (DCP), or what vLLM wrote with
MSPROBE_ROLLOUT_WEIGHTS=DIR; nothing is unpickled
exit code: 0 all the same (cast and quantised ones too), 1 some differ or are missing, 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("first", type=Path, metavar="A", help="the weights that are known to be good")
    parser.add_argument("second", type=Path, metavar="B", help="the weights to check")
    parser.add_argument("--older", type=Path, metavar="DIR", help="earlier weights: a tensor that equals them is stale")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    from msprobe.report.terminal import print_lines
    from msprobe.rollout.weights import answer, compare_weights

    found = compare_weights(args.first, args.second, args.older)
    if args.json:
        from msprobe.report.json_output import print_json

        print_json("weights", found.summary())
    else:
        print_lines(answer(found))
    return found.exit_code
