"""Finds out which calls run in higher precision.

While MindSpore differentiates, an operator that fails ends the differentiation, even if the error is caught. Training
must not end because an operator does not support a type. So a call with changed types is first tried when no
differentiation is open: at once, or on copies when the step has ended. Its results are judged as usual. From the next
step on it runs in place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from msprobe.collect import notices
from msprobe.mindspore.executor import differentiating
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.tasks.free_benchmark.perturbation import IMPROVE, RAISING, TO_CPU
from msprobe.tasks.free_benchmark.second_run import Call

_BUDGET = 1 << 29
# Listed functions take float32 wherever they take half precision, except these.
_HALF_ONLY = re.compile(r"flash|attention_score|fusion_attention|quant|ffn|moe|grouped", re.IGNORECASE)

# Operators that refuse float64.
_OPERATORS = ("Primitive.", "Functional.", "Mint", "Tensor.")
_NO_DOUBLE = re.compile(r"conv|batch_?norm|fused|attention", re.IGNORECASE)

Key = tuple[str, str, tuple[str, ...]]


class HeldCall(NamedTuple):
    """A call that is tried when the step has ended."""

    call: Call
    again: Callable[[str], Sequence[Any]]
    stack: int


def key_of(mode: str, title: str, args: Any, kwargs: Any) -> Key:
    return mode, title, tuple(f"{tensor.dtype}{len(tensor.shape)}" for tensor in tensors_in((args, kwargs), []))


def has_no_double(mode: str, title: str, dtype: str) -> bool:
    """Whether a call is known to refuse the dtype of this mode. A trial has side effects: the framework drops its
    state, and operators with their own random numbers restart them."""
    if mode != TO_CPU or dtype != "float32" or not title.startswith(_OPERATORS):
        return False
    return bool(_NO_DOUBLE.search(title))


class DryRuns:
    """The trials of a run."""

    def __init__(self) -> None:
        self._known: dict[Key, bool] = {}
        self._waiting: set[Key] = set()
        self._held: list[HeldCall] = []
        self._bytes = 0
        self.missed = 0
        self.random = ""
        """A call whose operator has its own random numbers."""

    def trusts(self, key: Key, listed: bool) -> bool:
        """Whether this call may run in raised precision now."""
        mode, title, _ = key
        if mode not in RAISING or not differentiating():
            return True
        known = self._known.get(key)
        if known is None:
            return listed and mode == IMPROVE and not _HALF_ONLY.search(title)
        return known

    def failed(self, key: Key) -> bool:
        return self._known.get(key) is False

    def note(self, key: Key, ran: bool) -> None:
        if key[0] not in RAISING:
            return
        self._known[key] = ran
        if not ran and self.random:
            notices.warn_once(
                f"free_benchmark: after the failed second run of {key[1]}, calls such as {self.random} may draw other "
                "random numbers than without msprobe."
            )

    def refuse(self, key: Key) -> None:
        """Notes that the call does not run in higher precision; no trial is needed."""
        self._known[key] = False

    def wants(self, key: Key, size: int) -> bool:
        """Whether to hold this call: the first of its kind always, others as far as memory allows."""
        if key in self._waiting and self._bytes + size > _BUDGET:
            self.missed += 1
            return False
        self._waiting.add(key)
        self._bytes += size
        return True

    def hold(self, held: HeldCall) -> None:
        self._held.append(held)

    def take(self) -> list[HeldCall]:
        """The calls to try now; they are no longer held."""
        held, self._held = self._held, []
        self._waiting.clear()
        self._bytes = 0
        return held
