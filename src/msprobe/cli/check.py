"""`msprobe check`: runs a command again, and says whether its numbers are still those of a baseline."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.cli.commands import add_command, add_store, need_command
from msprobe.cli.commands import split_command as split_words

if TYPE_CHECKING:
    from msprobe.baseline.result import CheckResult

__all__ = ["add_arguments", "run", "split_words"]

EPILOG = """examples:
  msprobe baseline save tiny -- python train.py        once, on a good commit
  msprobe check tiny -- python train.py                in CI
  msprobe check tiny --junit check.xml -- torchrun --nproc_per_node 2 train.py
  git bisect run msprobe check tiny --skip-broken --in /tmp/baselines -- python train.py
exit code: 0 same, 1 differs, 2 failed; with --skip-broken 125 if the command fails, 255 if msprobe cannot check"""
SKIP = 125
ABORT_BISECT = 255


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "msprobe check NAME [options] -- COMMAND ..."
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", help="the name of the baseline")
    add_store(parser)
    parser.add_argument(
        "--tolerance",
        choices=("auto", "bitwise", "rounding"),
        default="auto",
        help="auto: bitwise, or rounding if CPU, version or threads differ from the baseline's (default)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; the command prints to stderr")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the result as JUnit XML")
    parser.add_argument(
        "--github", action="store_true", help="print an annotation for GitHub (always on if GITHUB_ACTIONS is true)"
    )
    parser.add_argument(
        "--skip-broken", action="store_true", help="for git bisect: exit code 125 if the command itself fails"
    )
    add_command(parser)


def run(args: argparse.Namespace) -> int:
    from msprobe.baseline.running import CommandFailed
    from msprobe.dump.errors import DumpError

    try:
        result = _check(args)
    except DumpError as error:
        if args.junit is not None and args.junit.parent.is_dir():
            from msprobe.report.check_answer import write_junit

            write_junit(args.junit, args.name, None, str(error))
        if not args.skip_broken:
            raise
        print(f"msprobe check: {error}", file=sys.stderr)
        return SKIP if isinstance(error, CommandFailed) else ABORT_BISECT
    _report(args, result)
    return 1 if args.skip_broken and not result.answer.passed else result.answer.exit_code


def _check(args: argparse.Namespace) -> CheckResult:
    from msprobe.baseline.result import check_dump
    from msprobe.baseline.running import collect_run
    from msprobe.baseline.store import Store
    from msprobe.cli.outputs import check_outputs

    check_outputs((args.junit,))
    command = need_command(args)
    store = Store(args.store)
    known = store.of_name(args.name)
    for one in known:
        store.verify(one)  # before the command runs, which may take minutes
    with tempfile.TemporaryDirectory(prefix="msprobe_check_") as work:
        again, golden = Path(work, "run"), Path(work, "golden")
        again.mkdir()
        ran = collect_run(command, again, known[0].steps, known[0].seed, quiet=args.json)
        return check_dump(store, args.name, ran.dump, golden, args.tolerance, ran.seconds)


def _report(args: argparse.Namespace, result: CheckResult) -> None:
    from msprobe.report.check_answer import answer_lines, github_line, write_junit
    from msprobe.report.json_output import print_json

    on_github = args.github or os.environ.get("GITHUB_ACTIONS") == "true"
    if args.junit is not None:
        write_junit(args.junit, args.name, result)
    if args.json:
        print_json("check", result.summary())
    else:
        print_answer(answer_lines(result), on_github)
    line = github_line(result)
    if line is not None and on_github:
        print(line, file=sys.stderr if args.json else None)


def print_answer(lines: Sequence[str], github: bool) -> None:
    """On GitHub, no line of the answer is a command of the workflow: names and source lines in it come from files."""
    from msprobe.report.terminal import print_lines

    token = secrets.token_hex(16)
    if github:
        print(f"::stop-commands::{token}")
    print_lines(lines)
    if github:
        print(f"::{token}::")
