"""One dump: its rows without a golden side, and the first NaN or infinity as the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from msprobe.analyze.overflow import OverflowAnalysis, analyse
from msprobe.analyze.overflow_event import Event
from msprobe.compare.calls import Match, calls_of, forward_name
from msprobe.compare.inputs import open_sources
from msprobe.compare.measure.distance import number
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.result import UnitResult
from msprobe.compare.rows import ERROR, INTRODUCED, PASSED, PROPAGATED, Item, Judgement, Row, slots
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.messages import Message
from msprobe.view.material import Answer, Material

_NUMBERS = ("Max", "Min", "Mean", "Norm")
_DIRECTIONS = {"forward": Message("phase.forward"), "backward": Message("phase.backward")}
_NOT_FINITE = ("nan", "inf", "-inf")


def load_dump(path: Path) -> Material:
    notes: list[Message] = []
    sources = open_sources(path, notes)
    found = _analyse(path, sources)
    roles = {(event.label, event.name): event.producer for event in found.overflows}
    units: list[UnitResult] = []
    read: list[Source] = []
    for source in sources:
        try:
            units.append(_unit(source, roles))
            read.append(source)
        except DumpError as error:
            if source is sources[-1] and not units:
                raise
            notes.append(Message("dump.not_shown", error=str(error).rstrip(".")))
    sources = read
    answer = _answer(found, units, sources)
    answer.notes = [*notes, *found.notes, *_unfinished(sources)]
    living = any(source.unfinished for source in sources)
    counts = {"rows": sum(len(rows) for unit in units for _, rows in unit.groups), "pass": 0, "error": 0}
    for unit in units:
        for row in unit.rows():
            counts["error" if row.verdict == ERROR else "pass"] += 1
    return Material("dump", path, None, answer, units, [(source, None) for source in sources], None, living, counts)


def _unfinished(sources: list[Source]) -> list[Message]:
    some = [source.label for source in sources if source.unfinished]
    return [Message("dump.unfinished", labels=some[:4])] if some else []


def _analyse(path: Path, sources: list[Source]) -> OverflowAnalysis:
    ranks = [source for source in sources if isinstance(source, RankDump)]
    if ranks:
        return analyse(ranks)
    from msprobe.analyze.graph_overflow import analyse_graph
    from msprobe.graphdump import GraphDump

    try:
        return analyse_graph(GraphDump(path))
    except DumpError as error:  # npy files without their graphs
        return OverflowAnalysis([], None, False, 0, [Message("overflow.unchecked", error=str(error))])


def _unit(source: Source, roles: Mapping[tuple[str, str], bool]) -> UnitResult:
    groups = []
    for call in calls_of({**source.records, **source.debug}, source.construct):
        match = Match(call, None, "recorded", 1.0)
        rows = [Row(match, slot, slot, item, None, absent="golden") for slot, item in slots(call)]
        producer = roles.get((source.label, call.name))
        for row in rows:
            word = _not_finite(row.target)
            row.judgement = PASSED if word is None else Judgement(ERROR, 0.0, Reason(Kind.VALUES, word))
            if word and producer is not None:
                row.role = INTRODUCED if producer and not row.is_input else PROPAGATED
        groups.append((match, rows))
    return UnitResult(source.step, source.rank, source.label, groups, (source.stacks, {}))


def _not_finite(item: Item) -> Optional[Message]:
    """Whether it has NaN or infinity."""
    if item is None:
        return None
    values = [item.get(key) for key in _NUMBERS] if "dtype" in item else [item.get("value")]
    words = {str(number(one)) for one in values if not isinstance(one, bool)} & set(_NOT_FINITE)
    return Message("found.nan") if "nan" in words else Message("found.infinity") if words else None


def _answer(found: OverflowAnalysis, units: list[UnitResult], sources: list[Source]) -> Answer:
    event = found.producer
    if event is None:
        records = sum(len(unit.groups) for unit in units)
        verdict = "found" if found.overflows else "clean"
        number = len(found.overflows)
        text = Message("overflow.unproduced", number=number) if number else ""
        return Answer(verdict, text, [("records", str(records)), *_facts_of(sources[0])])
    call = event.name
    if event.module and event.module != event.name:
        call = Message("call.in", call=event.name, module=event.module)
    answer = Answer("found", Message("overflow.first", call=call, slots=list(event.slots)))
    more = len(found.overflows) - 1
    answer.facts = [
        ("call", event.name),
        ("module", event.module or ""),
        ("where", Message("place.unit", label=event.label, direction=_DIRECTIONS.get(event.direction, ""))),
        ("source", event.source or ""),
        ("then", Message("overflow.more", number=more) if more > 0 else ""),
    ]
    answer.facts = [(key, text) for key, text in answer.facts if text]
    _point(answer, event, units)
    return answer


def _point(answer: Answer, event: Event, units: list[UnitResult]) -> None:
    for index, unit in enumerate(units):
        for match, rows in unit.groups if (unit.step, unit.rank) == (event.step, event.rank) else ():
            if match.call.name == event.name:
                answer.unit = index
                bad = [row for row in rows if row.role == INTRODUCED] or rows
                answer.row = bad[0] if bad else None
                stack = unit.stacks[0].get(event.name) or unit.stacks[0].get(forward_name(match.call)) or []
                answer.stacks = (stack, [])
                return


def _facts_of(source: Source) -> list[tuple[str, str]]:
    head: dict[str, Any] = source.head
    names: tuple[Optional[str], ...] = (head.get("framework"), head.get("task"), head.get("level"))
    return [("run", ", ".join(str(name) for name in names if name))]
