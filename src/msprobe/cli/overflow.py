"""`msprobe overflow`: finds the first call that produced NaN or infinity, and replays it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from msprobe.cli.everything import add_all
from msprobe.messages import Message, beside

if TYPE_CHECKING:
    from msprobe.analyze.overflow import OverflowAnalysis
    from msprobe.analyze.overflow_event import Event

REPLAY = "replay"
HELP_EPILOG = """examples:
  msprobe overflow ./dump_path                                  all steps and ranks
  msprobe overflow ./dump_path/step0 --json
  msprobe overflow replay ./dump_path/step0/rank/Torch.exp.3.forward   run that call again from its tensors
  msprobe overflow replay ./dump_path                           run the first producer again
exit code: 0 no overflow (replay: not reproduced), 1 overflow, 2 not a dump or not replayable"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP_EPILOG
    parser.add_argument(
        "what",
        nargs="+",
        metavar="DIR | replay RECORD",
        help="a dump, a step or a rank directory; or a record to replay",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_all(parser)


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import print_json

    if len(args.what) == 2 and args.what[0] == REPLAY:
        return _replay(Path(args.what[1]), args)
    if len(args.what) != 1 or (args.what[0] == REPLAY and not Path(REPLAY).exists()):
        raise DumpError("give one dump directory, or `replay` and a record; see msprobe overflow --help")
    found = _analyse(Path(args.what[0]), args.framework)
    if args.json:
        said = {"sentence": found.sentence, "notes": found.notes}
        content = {"producer": _as_json(found.producer), "overflows": len(found.overflows), **said}
        print_json("overflow", {**content, **beside(said, "sentence", "notes")})
    else:
        _print(args.what[0], found, args.everything)
    return 1 if found.overflows else 0


def _analyse(path: Path, framework: Optional[str]) -> OverflowAnalysis:
    from msprobe.analyze.overflow import analyse
    from msprobe.cli.framework import check_framework
    from msprobe.dump.errors import DumpError
    from msprobe.dump.nearby import open_or_explain

    if _is_graph_dump(path):
        return _analyse_graph(path)
    dump = open_or_explain(path)
    found = analyse(dump.ranks)
    readable = [rank for rank in dump.ranks if rank.is_readable]
    for rank in readable:
        check_framework(framework, rank)
    found.notes.extend(Message("note.sentence", text=note) for note in dump.notes)
    is_overflow_check = any(rank.head.get("task") == "overflow_check" for rank in readable)
    if not found.judged and not is_overflow_check:
        raise DumpError(
            f"{path} has no statistics, and the check needs them: collect with summary_mode statistics or md5, "
            "or with task overflow_check."
        )
    return found


def _is_graph_dump(path: Path) -> bool:
    """Whether this is a Graph-mode Dump of MindSpore and not a dump of msprobe."""
    from msprobe.dump.errors import DumpError
    from msprobe.dump.reader import open_dump
    from msprobe.graphdump import GraphDump

    try:
        open_dump(path)
    except DumpError:
        try:
            GraphDump(path)
        except DumpError:
            return False
        return True
    return False


def _analyse_graph(path: Path) -> OverflowAnalysis:
    from msprobe.analyze.graph_overflow import analyse_graph
    from msprobe.graphdump import GraphDump

    return analyse_graph(GraphDump(path))


def _as_json(event: Optional[Event]) -> Optional[dict[str, Any]]:
    if event is None:
        return None
    return {
        "name": event.name,
        "module": event.module,
        "direction": event.direction,
        "step": event.step,
        "rank": event.rank,
        "source": event.source,
    }


def _print(path: str, found: OverflowAnalysis, everything: bool) -> None:
    from msprobe.report.screen import MARK, NAME, PATH, TEXT, Column, Screen

    screen = Screen(everything)
    if not found.overflows:
        screen.say([f"{path}: {found.sentence}"])
    else:
        screen.say(_producer_lines(found))
        rows = [
            [event.label, "producer" if event.producer else "propagator", event.name, _describe(event),
             event.source or ""]
            for event in _ordered(found, screen.rows)
        ]  # fmt: skip
        columns = [
            Column("step/rank", drop=3), Column("role", MARK, drop=4), Column("record", NAME),
            Column("output", TEXT, drop=2), Column("source", PATH, drop=1),
        ]  # fmt: skip
        screen.table(columns, rows, "Overflows, in execution order", len(found.overflows))
    if found.notes:
        screen.say(found.notes, drop=1)
    screen.show()


def _ordered(found: OverflowAnalysis, most: Optional[int]) -> list[Event]:
    """The overflows, that of the first producer first: on many ranks it may be far from the beginning."""
    first = [event for event in found.overflows if event == found.producer]
    return [*first, *(event for event in found.overflows if event not in first)][:most]


def _producer_lines(found: OverflowAnalysis) -> list[str]:
    event = found.producer
    if event is None:
        return [found.sentence]
    lines: list[str] = [found.sentence]
    if found.inside_collective:
        lines.append("  inside communication: its inputs were finite on every rank in this dump")
    if event.discarded:
        lines.append(f"  discarded: the outputs of {event.discarded} are finite, and nothing outside received it")
    facts = {"module": event.module, "source": event.source}
    return [*lines, *(f"  {name}: {text}" for name, text in facts.items() if text)]


def _describe(event: Event) -> str:
    word = {1: "infinity", 2: "NaN"}.get(event.found, "")
    return f"{word} in {', '.join(event.slots[:3])}" if event.slots else word


def _replay(path: Path, args: argparse.Namespace) -> int:
    from msprobe.check.core.framework import FRAMEWORKS
    from msprobe.cli.replay import find_record
    from msprobe.dump.errors import DumpError
    from msprobe.dump.reader import open_dump

    if path.exists():
        event = _analyse(path, args.framework).producer
        if event is None:
            raise DumpError(f"{path} has no producer of an overflow; there is nothing to replay.")
        if _is_graph_dump(path):
            raise DumpError("msprobe cannot replay an operator of a graph; its inputs are in the dump.")
        rank = next(one for one in open_dump(path).ranks if one.label == event.label)
        name = event.name
        if rank.head.get("framework") not in FRAMEWORKS:
            raise DumpError(f"{rank.label} does not name its framework; replay needs a dump of msprobe.")
    else:
        rank, name = find_record(path)
    from msprobe.analyze.replay import replay
    from msprobe.cli.framework import require_framework
    from msprobe.report.json_output import print_json

    require_framework(rank.head["framework"], f"replaying {name}")
    result = replay(rank, name)
    if args.json:
        content = {"name": name, "again": result.again, "outputs": result.lines}
        print_json("overflow-replay", {**content, **beside(content, "", "outputs")})
    else:
        print(f"{name}: " + ("reproduced" if result.again else "not reproduced"))
        for line in result.lines:
            print(f"  {line}")
    return 1 if result.again else 0
