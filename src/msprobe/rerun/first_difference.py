"""The first difference of two runs of one script: bytes against bytes, in the order of execution.

Both runs have the same code, so calls belong together by name. Within a rank, the first record that differs counts.
Over ranks, the rank that differs without having received it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from msprobe.dump import layout
from msprobe.dump.collectives import is_collective
from msprobe.dump.errors import DumpError
from msprobe.dump.names import FORWARD, forward_of, is_module, parse_name
from msprobe.dump.reader import Dump, RankDump, items
from msprobe.dump.stack_frames import source_line
from msprobe.messages import Message
from msprobe.system.collector import at_rest

INPUT, OUTPUT, ARGUMENT, CALLS = "input", "output", "argument", "calls"
"""Kinds: an input that no recorded call made different, an output of equal inputs, a plain argument, other calls."""

_UNREAD = ("destination", "uninitialised")
_SAME_VALUE = ("type", "dtype", "shape", "value", "md5")


class Place(NamedTuple):
    """Where a value was recorded."""

    step: Optional[int]
    name: str
    slot: str


@dataclass(frozen=True)
class Unit:
    """One rank in one step, in both runs."""

    first: RankDump
    second: RankDump

    def generators(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return _generators(self.first), _generators(self.second)


@dataclass(frozen=True)
class Difference:
    """The first difference of one rank. `before` counts the records before it, all equal. `makers` are the calls that
    returned the two values; None where no recorded call did."""

    unit: Unit
    name: str
    kind: str
    slot: str
    items: tuple[Any, Any]
    before: int
    epoch: int
    makers: tuple[Optional[Place], Optional[Place]] = (None, None)
    uninitialised: bool = False
    parameter: str = ""
    module: Optional[str] = None
    from_outside: bool = False
    """Whether the value was given to the model, and not made inside it."""

    @property
    def step(self) -> Optional[int]:
        return self.unit.first.step

    @property
    def rank(self) -> Optional[int]:
        return self.unit.first.rank

    @property
    def is_collective(self) -> bool:
        parsed = parse_name(self.name)
        return parsed.direction == FORWARD and is_collective(parsed.key)

    @property
    def received(self) -> bool:
        return self.kind == OUTPUT and self.is_collective

    @property
    def source(self) -> Optional[str]:
        stacks = self.unit.first.stacks
        return source_line(stacks.get(self.name) or stacks.get(forward_of(self.name)) or [])


@dataclass(frozen=True)
class Comparison:
    """All ranks. `records` is the number of records that were compared and are equal."""

    steps: list[Optional[int]]
    ranks: int
    records: int
    differences: list[Difference]

    @property
    def first(self) -> Optional[Difference]:
        order = {step: place for place, step in enumerate(self.steps)}
        return min(
            self.differences,
            key=lambda one: (order[one.step], one.epoch, one.received, one.before, one.rank or 0),
            default=None,
        )


@at_rest()
def compare_runs(first: Dump, second: Dump) -> Comparison:
    """Raises DumpError if the runs have no step and rank in common, or no checksums."""
    other = {(rank.step, rank.rank): rank for rank in second.ranks}
    units = [Unit(one, other[one.step, one.rank]) for one in first.ranks if (one.step, one.rank) in other]
    if not units:
        raise DumpError(f"{first.path} and {second.path} have no step and rank in common.")
    differences: dict[Optional[int], Difference] = {}
    seen: dict[Optional[int], tuple[dict[str, Place], dict[str, Place]]] = {}
    records = 0
    for unit in units:
        rank = unit.first.rank
        if rank in differences:
            continue
        refuse_without_checksums(unit.first)
        refuse_without_checksums(unit.second)
        walk = _Walk(unit, *seen.setdefault(rank, ({}, {})))
        found = walk.run()
        records += walk.before
        if found is not None:
            differences[rank] = found
        unit.first.forget()
        unit.second.forget()
    steps = list(dict.fromkeys(unit.first.step for unit in units if unit.first.records or unit.second.records))
    return Comparison(steps, len({unit.first.rank for unit in units}), records, list(differences.values()))


class _Walk:
    """Walks the records of one rank and step. `made` are the values that calls of each run have returned."""

    def __init__(self, unit: Unit, first: dict[str, Place], second: dict[str, Place]) -> None:
        self._unit = unit
        self._made = (first, second)
        self.before = 0
        self._epoch = 0

    def run(self) -> Optional[Difference]:
        theirs = self._unit.second.records
        names = list(theirs)
        for place, (name, record) in enumerate(self._unit.first.records.items()):
            other = theirs.get(name)
            if other is None or (place < len(names) and names[place] not in self._unit.first.records):
                return self._other_calls(name if other is None else names[place], other is None)
            found = self._differ(name, record, other)
            if found is not None:
                return found
            parsed = parse_name(name)
            self._epoch += parsed.direction == FORWARD and is_collective(parsed.key)
            self._remember(name, record, other)
            self.before += 1
        more = next((name for name in names if name not in self._unit.first.records), None)
        return None if more is None else self._other_calls(more, False)

    def _differ(self, name: str, record: Mapping[str, Any], other: Mapping[str, Any]) -> Optional[Difference]:
        ours, theirs = dict(items(dict(record))), dict(items(dict(other)))
        pairs = [(slot, ours.get(slot), theirs.get(slot)) for slot in dict.fromkeys((*ours, *theirs))]
        unwritten = any(_reads_unwritten(one) for _, mine, its in pairs for one in (mine, its))
        ordered = sorted(pairs, key=lambda pair: _is_output(pair[0], name))
        for slot, mine, its in ordered:
            if _is_unread(mine) or _is_unread(its) or not _differs(mine, its):
                continue
            kind = OUTPUT if _is_output(slot, name) else (INPUT if _is_tensor(mine) and _is_tensor(its) else ARGUMENT)
            makers = (self._maker(0, mine), self._maker(1, its)) if kind == INPUT else (None, None)
            return Difference(
                self._unit, name, kind, slot, (mine, its), self.before, self._epoch, makers,
                uninitialised=unwritten and kind == OUTPUT,
                parameter=self._parameter(mine) if kind == INPUT else "",
                module=self._module(name),
                from_outside=self._from_outside(name, mine),
            )  # fmt: skip
        return None

    def _from_outside(self, name: str, item: Any) -> bool:
        """Whether a call outside of all modules got this value, or the outermost module around the call."""
        construct, records = self._unit.first.construct, self._unit.first.records
        around = forward_of(name)
        while construct.get(around) is not None:
            around = str(construct[around])
        given = items(records.get(around) or {}) if around != forward_of(name) else []
        return around == forward_of(name) or any(
            slot.startswith("input") and isinstance(one, dict) and one.get("md5") == item.get("md5")
            for slot, one in given
            if isinstance(item, dict)
        )

    def _other_calls(self, name: str, only_first: bool) -> Difference:
        which = Message("again.only_first" if only_first else "again.only_second")
        unit = self._unit
        return Difference(unit, name, CALLS, "", (which, None), self.before, self._epoch, module=self._module(name))

    def _maker(self, side: int, item: Any) -> Optional[Place]:
        return self._made[side].get(str(item.get("md5"))) if isinstance(item, dict) else None

    def _remember(self, name: str, record: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        step = self._unit.first.step
        for made, one in zip(self._made, (record, other)):
            for slot, item in items(dict(one)):
                if _is_output(slot, name) and _is_tensor(item) and "md5" in item:
                    made[str(item["md5"])] = Place(step, name, slot)

    def _parameter(self, item: Any) -> str:
        """The parameter that has this value in the first run: `0.weight`."""
        for name, record in self._unit.first.records.items():
            for slot, one in items(record):
                if slot.startswith("parameters.") and isinstance(one, dict) and one.get("md5") == item.get("md5"):
                    return f"{parse_name(name).key}.{slot.partition('.')[2]}"
        return ""

    def _module(self, name: str) -> Optional[str]:
        construct = {**self._unit.second.construct, **self._unit.first.construct}
        return None if is_module(name) else construct.get(name) or construct.get(forward_of(name))


def _is_output(slot: str, name: str) -> bool:
    return slot.startswith(("output", "parameters_grad."))


def _is_tensor(item: Any) -> bool:
    return isinstance(item, dict) and "dtype" in item and isinstance(item.get("shape"), list)


def _is_unread(item: Any) -> bool:
    return isinstance(item, dict) and any(item.get(key) for key in _UNREAD)


def _reads_unwritten(item: Any) -> bool:
    return isinstance(item, dict) and bool(item.get("uninitialised")) and not item.get("destination")


def _differs(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return any(first.get(key) != second.get(key) for key in _SAME_VALUE)
    return bool(first != second)


def refuse_without_checksums(rank: RankDump) -> None:
    """Raises DumpError if the tensors of this dump have no checksums."""
    tensors = (item for record in rank.records.values() for _, item in items(record) if _is_tensor(item))
    one = next(tensors, None)
    if one is not None and "md5" not in one:
        raise DumpError(
            f"{rank.path} has no checksums: collect it with summary_mode md5, or with `msprobe again -o DIR`."
        )


def _generators(rank: RankDump) -> dict[str, Any]:
    file = rank.path / layout.GENERATORS
    try:
        value = json.loads(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def first_batches(dump: Dump) -> Iterator[tuple[Optional[int], str]]:
    """The checksums of the tensors that the model was given in each step."""
    for rank in dump.ranks:
        batch = rank.run.get("first_batch")
        for item in batch if isinstance(batch, list) else ():
            if _is_tensor(item) and "md5" in item:
                yield rank.step, str(item["md5"])
