"""Compares the results of a second run with those of the first, and judges the difference.

A framework makes the second run and shows its tensors as `Flat`; the rest is the same for both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from msprobe.collect.records.selection import Selection
from msprobe.collect.records.stacks import Stacks
from msprobe.dump.stack_frames import source_line
from msprobe.stats import dtypes
from msprobe.stats.scan import FORMATS, ratio, scan
from msprobe.tasks.free_benchmark.limits import coarser, floor_of
from msprobe.tasks.free_benchmark.perturbation import NOISY, TO_CPU, NotChanged, Perturbations, first_float
from msprobe.tasks.free_benchmark.run import Difference, FreeBenchmarkRun

_NAMES = tuple(FORMATS)


class Flat(NamedTuple):
    """The numbers of a tensor in contiguous host memory; a complex number as two."""

    memory: Any
    """What keeps them alive."""
    address: int
    code: int
    """One of FORMATS; -1 for numbers that are only equal or not. `memory` is then an array."""
    size: int


class Call(NamedTuple):
    """One call that is checked. `dtype` and `shape` are those of the first float tensor that it received."""

    name: str
    dtype: str
    """The name that all frameworks share."""
    dtype_text: str
    shape: tuple[int, ...]
    first: Sequence[Any]
    nested: bool

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[0]


class SecondRun:
    """One step: compares and judges."""

    def __init__(self, run: FreeBenchmarkRun, perturbations: Perturbations, step: int, rank: int) -> None:
        self.run = run
        self.perturbations = perturbations
        self.mode = run.section.pert_mode
        self.fixes = run.section.handler_type == "fix"
        self.step = step
        self.rank = rank
        self._frames: dict[int, Any] = {}
        self.stacks = Stacks(self._frames.__setitem__)

    # What a framework defines.

    def flat(self, tensor: Any) -> Flat:
        raise NotImplementedError

    def dtype(self, tensor: Any) -> str:
        raise NotImplementedError

    # The same for all frameworks.

    def wants(self, selection: Selection, name: str, parents: Sequence[str]) -> bool:
        """Whether scope or list names this call, or its backward in the backward stage."""
        stages = ("forward",) if self.run.section.fuzz_stage == "forward" else ("forward", "backward")
        return selection.everything or any(selection.enter(f"{name}.{stage}", parents) for stage in stages)

    def first_float(self, args: Any, kwargs: Any) -> Optional[Any]:
        """The first floating-point tensor of the arguments."""
        return first_float(args, kwargs, self.perturbations.is_float)

    def make_call(self, name: str, target: Any, first: Sequence[Any], nested: bool) -> Call:
        """`target` is the first float tensor that the call received, `first` what it returned."""
        return Call(name, self.dtype(target), str(target.dtype), tuple(target.shape), first, nested)

    def where(self, stack: int) -> str:
        return source_line(self._frames[stack]()) or "at an unknown line"

    def forward(
        self, call: Call, again: Callable[[str], Sequence[Any]], stack: Callable[[], int]
    ) -> Optional[Sequence[Any]]:
        """Runs a call again by `again(mode)` and judges. Returns its results; None if there is nothing to compare."""
        try:
            results = again(self.mode)
            found = self.differences(call, results, "forward")
        except NotChanged:
            self.run.unchanged += 1
            return None
        except Exception as error:
            self.run.skip(call.title, f"its second run failed, {type(error).__name__}: {short(error)}")
            return None
        if self.run.wants_sample(call.title, call.dtype, self.step):
            self._sample(call, again, found)
        self.judge(call, "forward", found, stack)
        return results

    def judge(self, call: Call, stage: str, found: list[Difference], stack: Callable[[], int]) -> None:
        limits = self.run.limit
        failed = any(one.exceeds(limits(call.title, one.dtype, stage)) for one in found)
        where = self.where(stack()) if failed else ""
        self.run.judge(call.name, stage, self.step, self.rank, call.dtype_text, call.shape, found, where)

    def differences(
        self, call: Call, second: Sequence[Any], stage: str, incoming: Sequence[Any] = ()
    ) -> list[Difference]:
        """`incoming`: in the backward stage, the gradients from which those of the call were computed."""
        first = call.first
        if len(first) != len(second):
            raise ValueError(f"it returned {len(second)} tensors the second time and {len(first)} the first")
        source = [self.flat(grad) for grad in incoming if grad is not None]
        found = []
        for index, (one, other) in enumerate(zip(first, second)):
            if one is None or other is None:
                continue
            if tuple(one.shape) != tuple(other.shape):
                raise ValueError("an output has another shape the second time")
            name = self.dtype(one)
            name = coarser(name, call.dtype) if self.mode in NOISY else name
            distance = self._distance(one, other, name, stage, source)
            found.append(Difference(index if call.nested else None, name, *distance))
        return found

    def _distance(self, one: Any, other: Any, name: str, stage: str, source: Sequence[Flat]) -> tuple[float, int]:
        """The largest ratio of two tensors and how many elements are unequal."""
        other_flat, flat = self.flat(other), self.flat(one)
        if flat.code < 0 or other_flat.code < 0:
            unequal = int((flat.memory != other_flat.memory).sum())
            return (math.inf if unequal else 1.0), unequal
        summed = max(
            (_largest(grad) * math.sqrt(grad.size / flat.size) for grad in source if grad.size > flat.size > 0),
            default=0.0,
        )
        floor = floor_of(name, self.mode, stage, _largest(flat), summed)
        worst, flipped, unequal = ratio(flat.address, flat.code, other_flat.address, other_flat.code, flat.size, floor)
        return (math.inf if flipped else worst), unequal

    def _sample(self, call: Call, again: Callable[[str], Sequence[Any]], found: list[Difference]) -> None:
        """Preheating: the same call on the CPU, in raised precision, shows whether the first result was right."""
        try:
            right = self.differences(call, again(TO_CPU), "forward")
        except Exception as error:
            self.run.skip(call.title, f"it cannot be preheated on the CPU, {short(error)}")
            return
        worst = max((one.ratio for one in found), default=1.0)
        self.run.preheat(call.title, call.dtype, worst, max((one.ratio for one in right), default=1.0))


def _largest(flat: Flat) -> float:
    """The largest magnitude."""
    if flat.code < 0:
        return 0.0
    bits, _ = scan(flat.address, flat.code, flat.size)
    row = dtypes.BY_NAME[_NAMES[flat.code]]
    assert row.numpy_dtype is not None
    return float(np.array(bits, f"u{row.itemsize}").view(row.numpy_dtype))


def short(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:160].rstrip(" .,:;")


def host_random() -> tuple[Any, Any]:
    """The state of Python's and numpy's random numbers: user functions may draw from them."""
    return random.getstate(), np.random.get_state()


def set_host_random(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
