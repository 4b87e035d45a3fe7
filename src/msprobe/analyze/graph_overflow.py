"""`msprobe overflow` on a graph-mode dump: the analysis of analyze/overflow.py, for operators.

It reads a complete dump (op_debug_mode 0) and a dump of overflows (task overflow_check at level L2, op_debug_mode 1 to
3), in which each operator has all its inputs. If an input was not dumped, it reads the output of the operator that
produced it. If that was not dumped either, it names no producer.
"""

from __future__ import annotations

from typing import Optional

from msprobe.analyze.overflow import OverflowAnalysis, find_first
from msprobe.analyze.overflow_event import Event
from msprobe.dump.collectives import OPERATORS
from msprobe.dump.errors import DumpError
from msprobe.graphdump.files.directory import Tensor
from msprobe.graphdump.files.statistics import Statistics
from msprobe.graphdump.graphs.operators import Key, Operator
from msprobe.graphdump.reader import GraphDump
from msprobe.messages import Message
from msprobe.stats.finiteness import FINITE, INFINITE, NAN

Run = tuple[Key, Optional[int]]


def analyse_graph(dump: GraphDump) -> OverflowAnalysis:
    reading = _Reading(dump)
    overflows: list[Event] = []
    producer: Optional[Event] = None
    inside = False
    for iteration in dump.iterations:
        events = [event for rank in dump.ranks for event in reading.events(rank, iteration)]
        overflows += [event for event in events if event.overflow]
        if producer is None:
            producer, inside = find_first(events)
    notes = [*(Message("note.sentence", text=note) for note in dump.notes), *reading.notes]
    return OverflowAnalysis(overflows, producer, inside, reading.judged, notes)


class _Reading:
    """The states of the tensors of a dump; each tensor is measured once."""

    def __init__(self, dump: GraphDump) -> None:
        self.judged = 0
        self.notes: dict[str, None] = {}
        self._dump = dump
        self._states: dict[int, Optional[int]] = {}
        self._made_infinity: set[int] = set()
        self._runs: dict[Run, list[Tensor]] = {}
        for tensor in dump.tensors:
            key = Key(tensor.rank, tensor.graph, tensor.operator)
            self._runs.setdefault((key, tensor.iteration), []).append(tensor)

    def events(self, rank: int, iteration: int) -> list[Event]:
        """All overflows and all collectives, in execution order."""
        found: list[Event] = []
        turns: dict[str, int] = {}
        for position, operator in enumerate(self._dump.execution):
            tensors = self._runs.get((operator.key, iteration))
            if operator.rank != rank or not tensors:
                continue
            collective: Optional[tuple[object, ...]] = None
            if operator.type in OPERATORS:
                turns[operator.type] = turns.get(operator.type, -1) + 1
                collective = (operator.type, turns[operator.type])
            event = self._event(operator, tensors, iteration, position, sum(turns.values()), collective)
            if event is not None:
                found.append(event)
        return found

    def _event(
        self,
        operator: Operator,
        tensors: list[Tensor],
        iteration: int,
        position: int,
        epoch: int,
        collective: Optional[tuple[object, ...]],
    ) -> Optional[Event]:
        outputs = [(one.label, self._state(one)) for one in tensors if one.io == "output"]
        self.judged += any(state is not None for _, state in outputs)
        worst = max((state for _, state in outputs if state is not None), default=FINITE)
        if worst == FINITE and collective is None:
            return None
        rank = operator.rank
        given = self._given(operator, tensors, iteration)
        if given is None:
            self.notes[Message("overflow.not_dumped")] = None
        handed_in = given == INFINITE and rank not in self._made_infinity
        overflow = worst != FINITE and not (handed_in and worst == INFINITE)
        if overflow and worst == INFINITE:
            self._made_infinity.add(rank)
        if not overflow and collective is None:
            return None
        line = operator.line
        return Event(
            step=iteration,
            rank=rank,
            label=f"step{iteration}/rank{rank}",
            name=operator.name,
            position=position,
            epoch=epoch,
            given=NAN if given is None else given,
            found=worst,
            producer=overflow and (given == FINITE or handed_in),
            overflow=overflow,
            slots=tuple(label for label, state in outputs if state),
            collective=collective,
            module=operator.name.rpartition("/")[0] or None,
            source=None if line is None else f"{line.file}:{line.first} ({line.text})",
        )

    def _given(self, operator: Operator, tensors: list[Tensor], iteration: int) -> Optional[int]:
        """The worst state among the inputs. None if some inputs are not known and the others are finite."""
        states: dict[int, Optional[int]] = {}
        for slot, source in self._dump.producers(operator):
            states[slot] = FINITE
            if isinstance(source, Operator):
                gave = [one for one in self._runs.get((source.key, iteration), ()) if one.io == "output"]
                states[slot] = self._worst(gave)
            elif source.startswith("%"):
                states[slot] = None
        for tensor in tensors:
            if tensor.io == "input":
                states[tensor.slot] = self._state(tensor)
        known = [state for state in states.values() if state is not None]
        worst = max(known, default=FINITE)
        return worst if worst != FINITE or (states and None not in states.values()) else None

    def _worst(self, tensors: list[Tensor]) -> Optional[int]:
        states = [self._state(tensor) for tensor in tensors]
        known = [state for state in states if state is not None]
        return max(known) if known and len(known) == len(states) else None

    def _state(self, tensor: Tensor) -> Optional[int]:
        key = id(tensor)
        if key not in self._states:
            try:
                self._states[key] = _state(self._dump.statistics(tensor))
            except DumpError as error:
                self._states[key] = None
                self.notes[str(error)] = None
        return self._states[key]


def _state(found: Statistics) -> Optional[int]:
    if found.finite is None:
        return FINITE if found.dtype and not _is_float(found.dtype) else None
    if found.finite:
        return FINITE
    numbers = (found.max, found.min, found.mean, found.norm)
    if found.nan or (found.nan is None and any(one is not None and one != one for one in numbers)):
        return NAN
    return INFINITE


def _is_float(dtype: str) -> bool:
    return "float" in dtype.lower() or "complex" in dtype.lower()
