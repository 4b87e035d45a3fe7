"""The part of `msprobe compare` for a rollout and a trainer: both dumps have tokens.json, one from each side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from msprobe.dump.reader import Dump


def find_sides(target: Path, golden: Path) -> Optional[tuple[Dump, Dump]]:
    """The rollout and the trainer, if the dumps are one of each; None for all others, and if one cannot be read."""
    from msprobe.dump.errors import DumpError
    from msprobe.rollout.comparison import sides_of

    try:
        return sides_of(target, golden)
    except DumpError:
        return None


def compare_tokens(args: argparse.Namespace, sides: tuple[Dump, Dump]) -> int:
    """Compares by token, prints the answer and returns the exit code."""
    from msprobe.dump.errors import DumpError
    from msprobe.dump.layout import write_file
    from msprobe.report.json_output import json_text, print_json
    from msprobe.report.terminal import print_lines
    from msprobe.rollout.comparison import answer, compare_by_token

    if any((args.csv, args.xlsx, args.html, args.output, args.next_config)):
        raise DumpError("a rollout and a trainer are compared by token: use --json; there is no table of rows.")
    older = None if args.older is None else _older(args.older)
    found = compare_by_token(*sides, older, args.shares)
    if args.json:
        write_file(Path(args.json), [json_text("compare-tokens", found.summary(), indent=1).encode()])
    if args.json == "":
        print_json("compare-tokens", found.summary())
    else:
        print_lines(answer(found))
    return found.exit_code


def _older(path: Path) -> dict[str, Any]:
    from msprobe.rollout.checkpoints import open_weights

    return {name: one.read() for name, one in open_weights(path).tensors.items()}
