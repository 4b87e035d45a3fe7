"""`msprobe weights`: which tensors of two checkpoints, or of a checkpoint and an engine, differ, and how."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.cli.everything import add_all

if TYPE_CHECKING:
    from msprobe.rollout.weights import WeightsComparison

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
    add_all(parser)


def run(args: argparse.Namespace) -> int:
    from msprobe.rollout.weights import compare_weights

    found = compare_weights(args.first, args.second, args.older)
    if args.json:
        from msprobe.report.json_output import print_json

        print_json("weights", found.summary())
    else:
        _print(found, args.everything)
    return found.exit_code


def _print(found: WeightsComparison, everything: bool) -> None:
    from msprobe.dump.plural import count
    from msprobe.report.screen import NAME, TEXT, Column, Screen
    from msprobe.rollout.weights import CAST, EXTRA, QUANTISED

    screen = Screen(everything)
    wrong = found.wrong
    total = count(len([one for one in found.results if one.kind != EXTRA]), "tensor")
    screen.say([f"{len(wrong)} of {total} are not the same." if wrong else f"All {total} are the same."])
    words = {CAST: "only cast", QUANTISED: "quantised, within rounding", EXTRA: "only in the second weights"}
    rest = [f"{found.counts[kind]} {text}" for kind, text in words.items() if found.counts.get(kind)]
    if rest:
        screen.say([f"  {'; '.join(rest)}"])
    if wrong:
        columns = [Column("how"), Column("tensor", NAME), Column("in", NAME, drop=1), Column("what differs", TEXT)]
        screen.table(columns, [[one.kind, one.name, one.place, one.detail] for one in wrong])
    screen.show()
