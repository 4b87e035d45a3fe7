"""`msprobe show`: the content of a dump, with obvious anomalies."""

from __future__ import annotations

import argparse
import heapq
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.cli.everything import add_all

if TYPE_CHECKING:
    from msprobe.dump.summary import Finding, RankSummary

LARGEST = 10
MOST = 6  # lines of steps and ranks: the screen leaves out norms before it leaves out these
HELP_EPILOG = """example:
  msprobe show ./dump_path
  msprobe show ./dump_path/step0/rank0 --json
exit code: 0 shown, 2 not a dump or unreadable"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP_EPILOG
    parser.add_argument(
        "path", type=Path, metavar="DIR", help="a dump, a step directory, a rank directory or a dump.json"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_all(parser)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from msprobe.cli.framework import check_framework
    from msprobe.dump.errors import DumpError
    from msprobe.dump.nearby import open_or_explain
    from msprobe.dump.summary import summarise
    from msprobe.report.json_output import print_json
    from msprobe.report.progress import progress

    dump = open_or_explain(args.path)
    summaries = []
    unread: list[DumpError] = []
    for rank in progress(dump.ranks, len(dump.ranks), "reading"):
        fresh = replace(rank)  # a copy: its records are freed after this round
        try:
            summaries.append(summarise(fresh, LARGEST))
        except DumpError as error:
            unread.append(error)
            continue
        check_framework(args.framework, fresh)
    if not summaries:
        raise unread[0]
    notes = [*dump.notes, *(str(error).rstrip(".") for error in unread)]
    if args.json:
        print_json("show", _as_json(args.path, summaries, notes), indent=1)
    else:
        _print(args.path, summaries, notes, args.everything)
    return 0


def _as_json(path: Path, summaries: list[RankSummary], notes: list[str]) -> dict[str, Any]:
    from msprobe.messages import beside

    return {
        "path": str(path),
        "notes": notes,
        **beside({"notes": notes}, "", "notes"),
        "ranks": [
            {
                "rank": one.label,
                **{key: one.head.get(key) for key in ("task", "level", "framework")},
                "unfinished": one.state == "unfinished",
                "state": one.state,
                "notes": one.troubles,
                **beside({"notes": one.troubles}, "", "notes"),
                "records": dict(one.records),
                "dtypes": dict(one.dtypes),
                "anomalies": {name: vars(finding) for name, finding in _findings(one) if finding.count},
            }
            for one in summaries
        ],
        "largest_norms": [
            {"rank": label, "record": item.record, "slot": item.slot, "dtype": item.dtype,
             "shape": list(item.shape), "norm": item.norm}
            for label, item in _largest(summaries)
        ],
    }  # fmt: skip


def _print(path: Path, summaries: list[RankSummary], unread: list[str], everything: bool) -> None:
    from msprobe.dump.summary import KINDS
    from msprobe.report.screen import NAME, Column, Screen

    screen = Screen(everything)
    first = summaries[0].head
    screen.say([f"{path}: {first.get('framework')}, task {first.get('task')}, level {first.get('level')}"])
    kinds = [kind for kind in (*KINDS, "other") if any(one.records[kind] for one in summaries)]
    screen.table(
        [Column("step/rank"), Column("records"), *(Column(kind, drop=9 - at) for at, kind in enumerate(kinds)),
         Column("state")],
        [
            [one.label, sum(one.records.values()), *(one.records[kind] for kind in kinds), one.state]
            for one in (summaries if everything else _fold(summaries))
        ],
        "Records",
        len(summaries),
    )  # fmt: skip
    dtypes = sum((one.dtypes for one in summaries), Counter[str]())
    if dtypes:
        listed = ", ".join(f"{number} {dtype}" for dtype, number in dtypes.most_common())
        screen.say(["", f"Dtypes: {listed}"], drop=1)
    anomalies = [
        [one.label, name, finding.count, finding.record, finding.slot]
        for one in summaries
        for name, finding in _findings(one)
        if finding.count
    ]
    if anomalies:
        columns = [
            Column("step/rank", drop=2), Column("anomaly"), Column("records", drop=1), Column("first in order", NAME),
            Column("at"),
        ]  # fmt: skip
        screen.table(columns, anomalies, "Anomalies")
    else:
        screen.say(["", "Anomalies: none"])
    largest = _largest(summaries)
    if largest:
        columns = [
            Column("norm"), Column("step/rank", drop=3), Column("record", NAME), Column("at"), Column("dtype", drop=1),
            Column("shape", drop=2),
        ]  # fmt: skip
        screen.table(
            columns,
            [[i.norm, label, i.record, i.slot, i.dtype, str(list(i.shape))] for label, i in largest],
            "The largest norms" if len(largest) > 1 else "The largest norm",
        )
    notes = _notes(path, summaries, unread)
    if notes:
        screen.say(["", *notes])
    screen.show()


def _fold(summaries: list[RankSummary]) -> list[RankSummary]:
    """The first and the last of many; an unfinished one is always shown."""
    if len(summaries) <= MOST:
        return summaries
    first = [one for place, one in enumerate(summaries[:-2]) if place < MOST // 2 or one.state != "finished"]
    return [*first[: MOST - 2], *summaries[-2:]]


def _notes(path: Path, summaries: list[RankSummary], unread: list[str]) -> list[str]:
    notes = [f"{one.label}: {text}." for one in summaries for text in one.troubles]
    notes += [f"{text}." for text in unread]
    unfinished = [one.label for one in summaries if one.state == "unfinished"]
    if unfinished:
        are, them = ("is", "it") if len(unfinished) == 1 else ("are", "them")
        notes.append(
            f"{len(unfinished)} of {len(summaries)} rank {'directory' if len(summaries) == 1 else 'directories'} {are} "
            f"unfinished ({_places(unfinished)}); msprobe read the journal. If the run has ended, "
            f"`msprobe recover {path}` finishes {them}."
        )
    return notes


def _places(labels: list[str]) -> str:
    """Labels of rank directories, with the steps of each rank as ranges: step3-9/rank0, step12/rank0."""
    steps: dict[str, list[int]] = {}
    others = []
    for label in labels:
        step, _, rank = label.partition("/")
        if step.startswith("step") and step[4:].isdigit():
            steps.setdefault(rank, []).append(int(step[4:]))
        else:
            others.append(label)
    for rank, numbers in steps.items():
        ranges: list[list[int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        end = f"/{rank}" if rank else ""
        others += [f"step{a if a == b else f'{a}-{b}'}{end}" for a, b in ranges]
    return ", ".join(others)


def _findings(one: RankSummary) -> list[tuple[str, Finding]]:
    return [
        ("NaN", one.nan),
        ("infinity", one.inf),
        ("gradient all zero", one.zero_gradient),
        ("cut off inside the call", one.cut_off),
        ("raised an exception", one.raised),
    ]


def _largest(summaries: list[RankSummary]) -> list[tuple[str, Any]]:
    everything = ((one.label, item) for one in summaries for item in one.largest)
    return heapq.nlargest(LARGEST, everything, key=lambda pair: pair[1].norm)
