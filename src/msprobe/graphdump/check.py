"""Finds anomalies in a graph-mode dump: overflow and its producer, extreme values, dead tensors.

Outputs and parameters are checked. Inputs are read only to decide whether an operator produced the NaN or infinity
in its output or received it, and if the dump has only inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Callable, Optional, Union

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.graphdump.files.datatypes import find_type
from msprobe.graphdump.files.directory import Tensor
from msprobe.graphdump.files.names import spell_for_file
from msprobe.graphdump.files.statistics import Statistics
from msprobe.graphdump.graphs.operators import Key, Operator
from msprobe.graphdump.reader import GraphDump
from msprobe.stats.dtypes import BY_NAME, FLOAT

KINDS = ("overflow", "too large", "too small", "all zero", "unchanged", "out of range")
PRODUCER, PROPAGATOR, GIVEN, UNKNOWN = "producer", "propagator", "given", "unknown"


@dataclass(frozen=True)
class Limits:
    """The limits beyond which a tensor is a finding.

    `range_of` is a data type that must hold every value. Without it, the type on the device counts, if the graph
    names one that is narrower than the dumped type."""

    too_large: float = 1e6
    too_small: float = 1e-10
    zero_share: float = 1.0
    unchanged: float = 0.0
    range_of: Optional[str] = None


@dataclass(frozen=True)
class Finding:
    """One tensor beyond a limit. `role` is only for overflow: producer, propagator, given (a parameter), unknown."""

    kind: str
    operator: Operator
    tensor: Tensor
    detail: str
    role: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The findings in execution order, rank by rank; how many tensors were checked; messages about files that
    cannot be read."""

    findings: tuple[Finding, ...]
    judged: int
    unreadable: tuple[str, ...]


Execution = tuple[Key, Optional[int]]


def check(
    dump: GraphDump,
    limits: Optional[Limits] = None,
    kinds: Iterable[str] = KINDS,
    tensors: Optional[Iterable[Tensor]] = None,
    watch: Callable[[Sequence[Tensor]], Iterable[Tensor]] = iter,
) -> CheckResult:
    """Checks outputs and parameters of floating-point types: those in `tensors`, or all. `watch` can show progress: it
    gets the list of tensors and yields each."""
    checking = _Check(dump, limits or Limits(), frozenset(kinds))
    chosen = sorted(dump.tensors if tensors is None else tensors, key=checking.moment)
    findings = tuple(finding for tensor in watch(chosen) for finding in checking.judge(tensor))
    return CheckResult(findings, checking.judged, tuple(checking.unreadable))


class _Check:
    def __init__(self, dump: GraphDump, limits: Limits, kinds: frozenset[str]) -> None:
        self.dump, self.limits, self.kinds = dump, limits, kinds
        self.judged = 0
        self.unreadable: dict[str, None] = {}
        self.operators = {operator.key: operator for operator in dump.operators if operator.in_files}
        self.places = {operator.key: place for place, operator in enumerate(dump.execution)}
        self.previous: dict[tuple[Key, str, int], tuple[Tensor, Statistics]] = {}
        self.finite: dict[tuple[object, ...], Optional[bool]] = {}
        self.executions: dict[Execution, list[Tensor]] = {}
        self.parameters: dict[tuple[int, Optional[int], str], list[Tensor]] = {}
        for tensor in dump.tensors:
            self.executions.setdefault((_key(tensor), tensor.iteration), []).append(tensor)
            if tensor.type == "Parameter":
                place = (tensor.rank, tensor.iteration, tensor.operator)
                self.parameters.setdefault(place, []).append(tensor)

    def judge(self, tensor: Tensor) -> list[Finding]:
        if tensor.io == "input" and self._has_outputs(tensor):
            return []
        try:
            return list(self._judge(tensor))
        except DumpError as error:
            self.unreadable[str(error)] = None
            return []

    def moment(self, tensor: Tensor) -> tuple[float, ...]:
        place = self.places.get(_key(tensor), math.inf)
        return (tensor.rank, -1 if tensor.iteration is None else tensor.iteration, place, tensor.timestamp)

    def _has_outputs(self, tensor: Tensor) -> bool:
        return any(other.io == "output" for other in self.executions[_key(tensor), tensor.iteration])

    def _judge(self, tensor: Tensor) -> Iterator[Finding]:
        operator = self.operators[_key(tensor)]
        found = self.dump.statistics(tensor)
        self.finite[_identity(tensor)] = found.finite
        kind = find_type(found.dtype)
        if kind is None or kind.name not in BY_NAME or BY_NAME[kind.name].kind != FLOAT:
            return
        if found.finite is None and found.largest is None and found.md5 is None:
            return
        self.judged += 1
        wanted = self.kinds
        if found.finite is False:
            if "overflow" in wanted:
                yield Finding("overflow", operator, tensor, _overflow_text(found), self._role(operator, tensor))
            return
        for name, text in self._check_values(operator, tensor, found):
            if name in wanted:
                yield Finding(name, operator, tensor, text)
        if "unchanged" in wanted:
            yield from self._check_unchanged(operator, tensor, found)

    def _check_values(self, operator: Operator, tensor: Tensor, found: Statistics) -> Iterator[tuple[str, str]]:
        largest, limits = found.largest, self.limits
        if largest is None:
            return
        if largest > limits.too_large:
            yield "too large", f"max |x| {largest:.6g} > {limits.too_large:g}"
        if 0 < largest < limits.too_small:
            yield "too small", f"max |x| {largest:.6g} < {limits.too_small:g}"
        if tensor.iteration is not None:  # a constant may be zero
            if found.count and found.zero is not None:
                if found.zero / found.count >= limits.zero_share:
                    yield "all zero", f"{found.zero} of {found.count} are zero"
            elif largest == 0:
                yield "all zero", "max and min are zero"
        narrow = limits.range_of or _narrower(operator, tensor, found.dtype)
        if narrow is not None and largest > BY_NAME[narrow].largest:
            yield "out of range", f"max |x| {largest:.6g} > {BY_NAME[narrow].largest:g}, the largest {narrow}"

    def _check_unchanged(self, operator: Operator, tensor: Tensor, found: Statistics) -> Iterator[Finding]:
        """Ignores tensors with one element: a learning rate usually stays the same."""
        place = (_key(tensor), tensor.io, tensor.slot)
        before = self.previous.get(place)
        self.previous[place] = (tensor, found)
        if before is None or before[0].iteration == tensor.iteration or found.count in (0, 1):
            return
        if self._same(before, (tensor, found)):
            yield Finding("unchanged", operator, tensor, f"same as in iteration {before[0].iteration}")

    def _same(self, old: tuple[Tensor, Statistics], new: tuple[Tensor, Statistics]) -> bool:
        a, b = old[1], new[1]
        if old[0].file and new[0].file:
            if a.shape != b.shape or (self.limits.unchanged == 0 and (a.max, a.min, a.norm) != (b.max, b.min, b.norm)):
                return False
            first, second = self.dump.value(old[0]), self.dump.value(new[0])
            if self.limits.unchanged == 0:
                return bool(np.array_equal(first, second))
            wide = (first.astype(np.float64), second.astype(np.float64))
            return bool(np.allclose(*wide, rtol=self.limits.unchanged, atol=0))
        if a.md5 and b.md5:
            return a.md5 == b.md5
        known = (a.max, a.min, a.mean, a.norm)
        return None not in (a.max, a.min, a.norm) and known == (b.max, b.min, b.mean, b.norm)

    def _role(self, operator: Operator, tensor: Tensor) -> str:
        """Whether this operator produced the NaN or infinity. For an input that was not dumped, reads its producer."""
        if tensor.type == "Parameter":
            return GIVEN
        if tensor.io == "input":
            return UNKNOWN
        states: dict[int, Optional[bool]] = {}
        for slot, source in self.dump.producers(operator):
            states[slot] = self._source_is_finite(source, tensor)
        for other in self.executions[_key(tensor), tensor.iteration]:
            if other.io == "input":
                states[other.slot] = self._is_finite(other)
        if False in states.values():
            return PROPAGATOR
        return PRODUCER if states and None not in states.values() else UNKNOWN

    def _is_finite(self, tensor: Tensor) -> Optional[bool]:
        place = _identity(tensor)
        if place not in self.finite:
            try:
                self.finite[place] = self.dump.statistics(tensor).finite
            except DumpError as error:
                self.finite[place] = None
                self.unreadable[str(error)] = None
        return self.finite[place]

    def _source_is_finite(self, source: Union[Operator, str], tensor: Tensor) -> Optional[bool]:
        """A constant is finite. A parameter (of any graph) or an operator is finite if its outputs are."""
        if isinstance(source, Operator):
            given = self.executions.get((source.key, tensor.iteration), [])
        elif source.startswith("%"):
            given = self.parameters.get((tensor.rank, tensor.iteration, spell_for_file(source[1:])), [])
        else:
            return True
        states = [self._is_finite(other) for other in given if other.io == "output"]
        return False if False in states else (True if states and None not in states else None)


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Identifies the tensor of one execution: an operator in a loop runs several times per iteration."""
    return (tensor.directory, tensor.operator, tensor.io, tensor.slot, tensor.timestamp, tensor.file)


def _key(tensor: Tensor) -> Key:
    return Key(tensor.rank, tensor.graph, tensor.operator)


def _overflow_text(found: Statistics) -> str:
    counts = (("NaN", found.nan), ("+inf", found.posinf), ("-inf", found.neginf))
    parts = [f"{count} {name}" for name, count in counts if count]
    if parts:
        return f"{', '.join(parts)} of {found.count}" if found.count else ", ".join(parts)
    known = (("max", found.max), ("min", found.min), ("mean", found.mean), ("norm", found.norm))
    return ", ".join(f"{name} {value:g}" for name, value in known if value is not None)


def _narrower(operator: Operator, tensor: Tensor, dtype: str) -> Optional[str]:
    """The type of this slot on the device, if the graph names one with a smaller range than the dumped type."""
    if operator.node is None:
        return None
    specs = operator.node.signature.device_outputs if tensor.io == "output" else operator.node.signature.device_inputs
    device = find_type(specs[tensor.slot].dtype) if tensor.slot < len(specs) else None
    stored = find_type(dtype)
    if device is None or stored is None or not {device.name, stored.name} <= BY_NAME.keys():
        return None
    return device.name if BY_NAME[device.name].largest < BY_NAME[stored.name].largest else None
