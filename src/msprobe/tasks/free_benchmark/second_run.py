"""A call has been run a second time: its answers are compared with the first, judged, and told where it stands.

A framework makes the second run and shows its tensors as `Flat`; the rest is the same for both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from msprobe.collect.stacks import Stacks
from msprobe.dump.stack_frames import source_line
from msprobe.stats import dtypes
from msprobe.stats.scan import FORMATS, ratio, scan
from msprobe.tasks.free_benchmark.limits import coarser, floor_of
from msprobe.tasks.free_benchmark.perturbation import NOISY, TO_CPU, NotChanged
from msprobe.tasks.free_benchmark.run import Difference, FreeBenchmarkRun

_NAMES = tuple(FORMATS)


class Flat(NamedTuple):
    """The numbers of a tensor, one after the other in host memory; complex ones as their parts."""

    memory: Any
    """Whatever keeps them there."""
    address: int
    code: int
    """One of FORMATS; -1 for what is only equal or not, by `memory`, which then is an array."""
    size: int


class Call(NamedTuple):
    """One call that is checked: `target` is the first float tensor that it received."""

    name: str
    dtype: str
    """Of the target, as it is called in every framework."""
    dtype_text: str
    shape: tuple[int, ...]
    first: Sequence[Any]
    nested: bool

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[0]


class SecondRun:
    """Compares and judges; one a step."""

    def __init__(self, run: FreeBenchmarkRun, step: int, rank: int) -> None:
        self.run = run
        self.mode = run.section.pert_mode
        self.fixes = run.section.handler_type == "fix"
        self.step = step
        self.rank = rank
        self._frames: dict[int, Any] = {}
        self.stacks = Stacks(self._frames.__setitem__)

    # What a framework says.

    def flat(self, tensor: Any) -> Flat:
        raise NotImplementedError

    def dtype(self, tensor: Any) -> str:
        raise NotImplementedError

    # What is the same for all.

    def where(self, place: int) -> str:
        return source_line(self._frames[place]()) or "from a place that is not known"

    def forward(
        self, call: Call, again: Callable[[str], Sequence[Any]], place: Callable[[], int]
    ) -> Optional[Sequence[Any]]:
        """Runs a call again by `again(mode)` and judges. Its answers, or None where there is nothing to compare."""
        try:
            answers = again(self.mode)
            found = self.differences(call, answers, "forward")
        except NotChanged:
            return None
        except Exception as error:
            self.run.leave_out(call.title, f"its second run failed, {type(error).__name__}: {short(error)}")
            return None
        if self.run.wants_sample(call.title, call.dtype, self.step):
            self._sample(call, again, found)
        self.judge(call, "forward", found, place)
        return answers

    def judge(self, call: Call, stage: str, found: list[Difference], place: Callable[[], int]) -> None:
        limits = self.run.limit
        failed = any(one.exceeds(limits(call.title, one.dtype, stage)) for one in found)
        where = self.where(place()) if failed else ""
        self.run.judge(call.name, stage, self.step, self.rank, call.dtype_text, call.shape, found, where)

    def differences(
        self, call: Call, second: Sequence[Any], stage: str, incoming: Sequence[Any] = ()
    ) -> list[Difference]:
        """`incoming`, in the backward stage, is what the call's gradients were computed from."""
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
        """Preheating: the same call on the CPU, in raised precision, says whether the first answer was right."""
        try:
            right = self.differences(call, again(TO_CPU), "forward")
        except Exception as error:
            self.run.leave_out(call.title, f"it cannot be preheated on the CPU, {short(error)}")
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
    """The state of Python's and numpy's random numbers: functions of the user's own may draw from them."""
    return random.getstate(), np.random.get_state()


def set_host_random(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
