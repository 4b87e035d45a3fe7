"""Verbs that run a command: all words after `--`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def add_command(parser: argparse.ArgumentParser) -> None:
    """`args.command` is the command, a list of words; None without `--`."""
    parser.add_argument("--command", type=json.loads, help=argparse.SUPPRESS)


def split_command(words: Sequence[str]) -> Sequence[str]:
    """argparse would read options of the command as options of msprobe."""
    if "--" not in words:
        return words
    place = list(words).index("--")
    return [*words[:place], f"--command={json.dumps(list(words[place + 1 :]))}"]


def add_store(parser: argparse.ArgumentParser) -> None:
    from msprobe.baseline.store import DIRECTORY

    parser.add_argument(
        "--in",
        dest="store",
        type=Path,
        default=Path(DIRECTORY),
        metavar="DIR",
        help=f"the directory of the baselines (default: ./{DIRECTORY})",
    )


def need_command(args: argparse.Namespace) -> list[str]:
    from msprobe.dump.errors import DumpError

    if not args.command:
        raise DumpError("give the command after --, as in: msprobe check NAME -- python train.py")
    return [str(word) for word in args.command]
