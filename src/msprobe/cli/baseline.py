"""`msprobe baseline`: keeps the numbers of a good run, small enough for the repository, for `msprobe check`."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from msprobe.cli.commands import add_command, add_store, need_command
from msprobe.cli.commands import split_command as split_words
from msprobe.cli.everything import add_all

if TYPE_CHECKING:
    from msprobe.baseline.running import Run
    from msprobe.baseline.store import Baseline, Store

__all__ = ["add_arguments", "run", "split_words"]

EPILOG = """examples:
  msprobe baseline save tiny -- python train.py
  msprobe baseline update tiny -- python train.py      after an intended change: prints what changes
  msprobe baseline list
  msprobe baseline remove tiny
save runs the command three times: twice collected, which shows whether it repeats itself, and once without msprobe,
for the cost. --quick runs it once; checks then allow rounding.
exit code: 0 done, 2 failed"""
DEFAULT_STEPS = [0, 1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe baseline save|update NAME [options] -- COMMAND ...\n       msprobe baseline list|remove [NAME]"
    )
    parser.epilog = EPILOG
    parser.add_argument("act", choices=("save", "update", "list", "remove"), metavar="save|update|list|remove")
    parser.add_argument("name", nargs="?", metavar="NAME", help="letters, digits, '.', '_' and '-'")
    add_store(parser)
    parser.add_argument("--steps", type=int, metavar="N", help="how many steps are kept (default: 2)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed all random numbers before the script runs")
    parser.add_argument("--quick", action="store_true", help="run the command once")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_all(parser)
    add_command(parser)


def run(args: argparse.Namespace) -> int:
    from msprobe.baseline.store import Store
    from msprobe.dump.errors import DumpError

    store = Store(args.store)
    if args.act == "list":
        return _list(args, store)
    if args.name is None:
        raise DumpError(f"give the name of the baseline: msprobe baseline {args.act} NAME")
    if args.act == "remove":
        for place in store.remove(args.name):
            print(f"Removed {place}")
        return 0
    return _save(args, store)


def _list(args: argparse.Namespace, store: Store) -> int:
    from msprobe.report.json_output import print_json
    from msprobe.report.screen import NAME, TEXT, Column, Screen

    found = [one for name in ([args.name] if args.name else store.names()) for one in store.of_name(name)]
    if args.json:
        print_json("baseline-list", {"baselines": [asdict(one) for one in found]})
        return 0
    rows = [[one.name, one.machine.text, one.calls, _kilobytes(store, one), one.saved, one.commit] for one in found]
    columns = [
        Column("name", NAME), Column("machine", TEXT), Column("calls", drop=3), Column("kB", drop=1), Column("saved"),
        Column("commit", drop=2),
    ]  # fmt: skip
    screen = Screen(args.everything, listing=True)
    screen.table(columns, rows, "Baselines")
    screen.show()
    return 0


def _kilobytes(store: Store, baseline: Baseline) -> float:
    return round(store.sizes(baseline)[1] / 1000, 1)


def _save(args: argparse.Namespace, store: Store) -> int:
    from msprobe.baseline.machine import machine_of
    from msprobe.baseline.running import bare_run, collect_run
    from msprobe.baseline.store import check_name
    from msprobe.dump.errors import DumpError
    from msprobe.dump.reader import open_dump

    command = need_command(args)
    check_name(args.name)
    older = store.of_name(args.name) if args.act == "update" else []
    steps = list(range(args.steps)) if args.steps else older[0].steps if older else DEFAULT_STEPS
    seed = args.seed if args.seed is not None or not older else older[0].seed
    with tempfile.TemporaryDirectory(prefix="msprobe_baseline_") as work:
        first, second, golden = (Path(work, name) for name in ("first", "second", "golden"))
        first.mkdir()
        ran = collect_run(command, first, steps, seed, quiet=args.json)
        machine = machine_of(open_dump(ran.dump).ranks[0].run)
        known = store.find(args.name, machine)
        if known is not None and args.act == "save":
            raise DumpError(
                f"{args.name!r} has a baseline of this machine already. To replace it: "
                f"msprobe baseline update {args.name} -- …"
            )
        changes = _explain_change(store, known, ran, golden) if known is not None else []
        exact: Optional[bool] = None
        bare: Optional[float] = None
        if not args.quick:
            second.mkdir()
            exact = _repeats(collect_run(command, second, steps, seed, quiet=args.json), ran)
            bare = bare_run(command, quiet=args.json)
        return _write(args, store, ran, (steps, seed, exact, bare), changes)


def _write(
    args: argparse.Namespace,
    store: Store,
    ran: Run,
    how: tuple[list[int], Optional[int], Optional[bool], Optional[float]],
    changes: list[str],
) -> int:
    from msprobe import __version__
    from msprobe.baseline.changed_lines import current_commit, project_root
    from msprobe.baseline.machine import machine_of
    from msprobe.baseline.store import Baseline
    from msprobe.dump.reader import open_dump
    from msprobe.report.json_output import print_json
    from msprobe.report.terminal import print_lines

    here = Path.cwd()
    steps, seed, exact, bare = how
    machine = machine_of(open_dump(ran.dump).ranks[0].run)
    commit, now = current_commit(here), time.strftime("%Y-%m-%d", time.gmtime())
    baseline = Baseline(args.name, machine, args.command, commit, now, __version__, exact, steps, seed, 0, bare, "")
    place = store.save(baseline, ran.dump, project_root(here))
    saved = store.find(args.name, machine)
    assert saved is not None
    if args.json:
        print_json("baseline", {**asdict(saved), "path": str(place), "changes": changes})
        return 0
    packed, total = store.sizes(saved)
    repeated = (
        "" if args.quick else ("bit-identical when repeated, " if exact else "rounded differently when repeated, ")
    )
    cost = f"; {ran.seconds:.1f} CPU-s, bare {bare:.1f}" if bare is not None else ""
    print_lines(
        [
            *changes,
            f"Saved {saved.text}",
            f"  {saved.calls} calls, {repeated}{total / 1000:.1f} kB ({packed / 1000:.1f} kB compressed dump){cost}",
            f"  {place}",
        ]
    )
    return 0


def _repeats(again: Run, ran: Run) -> bool:
    """Whether the second run has the same bytes. Raises DumpError if it differs by more than rounding."""
    from msprobe.baseline.verdict import check
    from msprobe.dump.errors import DumpError

    answer = check(again.dump, ran.dump, bitwise=False)
    if not answer.passed:
        place = answer.place
        where = f" ({place.source})" if place is not None and place.source else ""
        raise DumpError(
            f"The command does not repeat itself, so nothing was saved: {answer.sentence}{where}."
            " Seed its random numbers and its data, or give --seed 1234."
        )
    return not answer.other_bytes


def _explain_change(store: Store, known: Baseline, ran: Run, golden: Path) -> list[str]:
    """What an update changes. Raises DumpError if the older baseline is of a different model."""
    from msprobe.baseline.verdict import check
    from msprobe.dump.errors import DumpError

    answer = check(ran.dump, store.unpack(known, golden), bitwise=True)
    if answer.is_other_model:
        raise DumpError(f"Nothing was saved: {answer.sentence}. To start again: msprobe baseline remove {known.name}")
    if answer.passed:
        return ["The update changes nothing: every compared value has the same bytes."]
    place = answer.place
    lines = [f"The update changes: {answer.sentence}"]
    lines += [f"  source  {place.source}"] if place is not None and place.source else []
    return [*lines, f"  {answer.other_bytes} compared values have different bytes"]
