"""`msprobe recover`: finishes a dump in place after a crash, from its journal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe.dump.reader import RankDump

HELP_EPILOG = """example:
  msprobe recover ./dump_path
  writes dump.json, stack.json and construct.json in each directory that has only journal.jsonl
exit code: 0 done or nothing to do, 1 some rank directories failed, 2 all failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP_EPILOG
    parser.add_argument("path", type=Path, metavar="DIR", help="a dump, a step directory or a rank directory")
    parser.add_argument("--all", action="store_true", help="write the json files again if they exist")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from msprobe.cli.framework import check_framework
    from msprobe.dump import layout
    from msprobe.dump.errors import DumpError
    from msprobe.dump.nearby import open_or_explain
    from msprobe.dump.plural import count
    from msprobe.dump.recovery import recover
    from msprobe.dump.untrusted.regular_files import is_inside
    from msprobe.messages import beside
    from msprobe.report.json_output import print_json
    from msprobe.report.progress import progress
    from msprobe.report.terminal import print_lines, printable

    dump = open_or_explain(args.path)
    ranks = [*dump.ranks, *(rank for rank in dump.unread if (rank.path / layout.JOURNAL).exists())]
    done, failed = [], []
    for found in progress(ranks, len(ranks), "recovering"):
        rank = replace(found)  # a copy: its records are freed after this round
        try:
            if not is_inside(rank.path, dump.path):
                raise DumpError(f"{rank.path} points outside of {dump.path}. To recover it, give its own path.")
            if not (rank.path / layout.JOURNAL).exists():
                _check_readable(rank)
            elif args.all or rank.unfinished:
                if args.framework is not None:
                    check_framework(args.framework, rank)
                done.append((rank.label, recover(rank.path)))
        except DumpError as error:
            failed.append((rank.label, str(error)))
    if args.json:
        rows = [
            {"rank": label, "records": one.records, "unfinished": one.unfinished, "notes": one.troubles,
             **beside({"notes": one.troubles}, "", "notes")}
            for label, one in done
        ]  # fmt: skip
        errors = [{"rank": label, "error": text} for label, text in failed]
        print_json("recover", {"recovered": rows, "failed": errors}, indent=1)
    else:
        for label, one in done:
            notes = "".join(f"; {text}" for text in one.troubles)
            cut = f", {one.unfinished} of them cut off inside the call" if one.unfinished else ""
            print_lines([f"{label}: {count(one.records, 'record')}{cut}{notes}"], bold=False)
        for label, text in failed:
            print(printable(f"msprobe recover: {label}: {text}"), file=sys.stderr)
        if not done and not failed:
            print_lines([f"{args.path} is complete: nothing to recover."])
    if not failed:
        return 0
    return 1 if done else 2


def _check_readable(rank: RankDump) -> None:
    """Raises DumpError if the json files of a directory without a journal are not a dump."""
    len(rank.records)
    len(rank.debug)
