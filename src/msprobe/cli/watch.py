"""`msprobe watch`: what began first in a watched run, also live; exports; compares two runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.cli.everything import add_all

if TYPE_CHECKING:
    from msprobe.watch.alarms.alarm import Alarm
    from msprobe.watch.reading.run import Run

POLL = 0.5
EPILOG = """examples:
  msprobe watch ./watch                          the timeline: what began first, and where
  msprobe watch ./watch --follow                 then print every new alarm; Ctrl-C stops it
  msprobe watch ./watch --json
  msprobe watch export ./watch --csv             also --tensorboard, --parquet; -o OUT sets the directory
  msprobe watch compare ./right ./wrong          the first step and target where two runs diverge
exit code: 0 no alarm (compare: the runs agree), 1 alarms (compare: they diverge), 2 failed"""
FORMATS = ("csv", "tensorboard", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe watch DIR [--follow] [--json]\n"
        "       msprobe watch export DIR (--csv | --tensorboard | --parquet) [-o OUT]\n"
        "       msprobe watch compare A B [--json]"
    )
    parser.epilog = EPILOG
    parser.add_argument("what", nargs="+", metavar="DIR", help="the dump_path of a monitor; or export DIR, compare A B")
    parser.add_argument("--follow", action="store_true", help="keep running and print new alarms")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_all(parser)
    for name in FORMATS:
        parser.add_argument(f"--{name}", action="store_true", help=f"export: write {name} files")
    parser.add_argument("-o", "--output", metavar="OUT", help="export: the directory to write to (default: DIR/export)")


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError

    verb, *rest = args.what
    if verb == "export" and rest:
        return _export(args, rest)
    if verb == "compare" and rest:
        return _compare(args, rest)
    if rest:
        raise DumpError("give one directory: msprobe watch DIR; see msprobe watch --help")
    return _show(args, Path(verb))


def _show(args: argparse.Namespace, directory: Path) -> int:
    from msprobe.report.json_output import print_json
    from msprobe.watch.reading.run import Run

    watched = Run(directory)
    with watched.snapshot():  # no alarm may be lost between this output and --follow
        alarms = watched.alarms()
        last = {rank.rank: rank.last_alarm() for rank in watched.ranks}
    if args.json:
        print_json("watch", {"alarms": [alarm.as_json() for alarm in alarms]})
    else:
        _print(watched, alarms, args.everything)
    more = _follow(watched, last, args.json) if args.follow else 0
    watched.close()
    return 1 if alarms or more else 0


def _print(watched: Run, alarms: Sequence[Alarm], everything: bool) -> None:
    from msprobe.report.screen import NAME, TEXT, Column, Screen

    screen = Screen(everything)
    screen.say(_answer(alarms))
    screen.say([_summary(watched)])
    if alarms:
        columns = [
            Column("step"), Column("rank", drop=2), Column("rule"), Column("target", NAME, drop=3),
            Column("what", TEXT, drop=1),
        ]  # fmt: skip
        rows = [(one.step, one.rank or 0, one.rule, one.target, one.sentence) for one in alarms[: screen.rows]]
        screen.table(columns, rows, "Alarms, in the order in which they began", len(alarms))
    screen.show()


def _summary(watched: Run) -> str:
    from msprobe.dump.plural import count
    from msprobe.report.terminal import number

    first = watched.ranks[0]
    steps = first.steps()
    ranks = count(len(watched.ranks), "rank") if first.rank is not None else "one process"
    span = "no step yet" if not steps else f"step {steps[0]}" if len(steps) == 1 else ""
    span = span or f"steps {steps[0]} to {steps[-1]} ({len(steps)} stored)"
    at, loss = first.curve("scalar", "loss", "value")
    last = f", loss {number(float(loss[-1]))} at step {int(at[-1])}" if len(loss) else ""
    framework = first.meta.get("framework", "")
    targets = count(len(first.series()), "target")
    return f"{watched.directory}: {framework}, {ranks}, {span}, {targets}{last}"


def _answer(alarms: Sequence[Alarm]) -> list[str]:
    if not alarms:
        return ["Alarms: none"]
    origin = alarms[0]
    lines = [f"First: step {origin.step}, rank {origin.rank or 0}, {origin.target}: {origin.sentence}"]
    around = ", ".join(f"{step}: {value:.4g}" for step, value in origin.around)
    return [*lines, f"  its norm by step: {around}"] if around else lines


def _follow(watched: Run, last: dict[Any, int], as_json: bool) -> int:
    """Prints new alarms until interrupted; returns how many there were."""
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import print_json
    from msprobe.report.terminal import printable

    came = 0
    try:
        while True:
            with contextlib.suppress(DumpError):  # a file that has just been created is empty for a moment
                watched.add_new_ranks()
            for rank in watched.ranks:
                for number, alarm in rank.alarms(last.get(rank.rank, 0)):
                    last[rank.rank] = number
                    came += 1
                    if as_json:
                        print_json("watch-alarm", alarm.as_json())
                    else:
                        said = printable(alarm.sentence)
                        print(f"step {alarm.step}  rank {alarm.rank or 0}  {alarm.rule}  {said}", flush=True)
            time.sleep(POLL)
    except KeyboardInterrupt:
        sys.stdout.flush()
    return came


def _export(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from msprobe.cli.outputs import check_outputs
    from msprobe.dump.errors import DumpError
    from msprobe.watch.reading.export import export

    chosen = [name for name in FORMATS if getattr(args, name)]
    if len(rest) != 1 or not chosen:
        raise DumpError("give one directory and at least one of --csv, --tensorboard, --parquet")
    directory = Path(rest[0])
    output = Path(args.output) if args.output else directory / "export"
    if args.output or directory.is_dir():
        check_outputs((), output)
    for name in chosen:
        for path in export(directory, name, output):
            print(path)
    return 0


def _compare(args: argparse.Namespace, rest: Sequence[str]) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import print_json
    from msprobe.report.terminal import print_lines
    from msprobe.watch.reading.compare import compare

    if len(rest) != 2:
        raise DumpError("give two directories: msprobe watch compare A B")
    result = compare(Path(rest[0]), Path(rest[1]))
    if args.json:
        print_json("watch-compare", result.as_json())
    else:
        print_lines(result.in_words().splitlines())
    return 1 if result.parts is not None else 0
