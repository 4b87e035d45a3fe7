"""Which calls are known to run in raised precision.

While MindSpore differentiates, an operator that fails takes the whole differentiation with it, caught or not. The
training must not die of a type that an operator does not have, so a call that changes its types is first
tried where nothing is open: at once outside of a differentiation, else on copies when the step has ended.
What is tried is judged like any other; from the next step on it is run in place.
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
# Listed functions take float32 wherever they take half precision, but for these.
_HALF_ONLY = re.compile(r"flash|attention_score|fusion_attention|quant|ffn|moe|grouped", re.IGNORECASE)

# Operators without float64, refused by a check of their types.
_OPERATORS = ("Primitive.", "Functional.", "Mint", "Tensor.")
_NO_DOUBLE = re.compile(r"conv|batch_?norm|fused|attention", re.IGNORECASE)

Key = tuple[str, str, tuple[str, ...]]


class Held(NamedTuple):
    """A call that is tried when the step has ended."""

    call: Call
    again: Callable[[str], Sequence[Any]]
    place: int


def key_of(mode: str, title: str, args: Any, kwargs: Any) -> Key:
    return mode, title, tuple(f"{tensor.dtype}{len(tensor.shape)}" for tensor in tensors_in((args, kwargs), []))


def has_no_double(mode: str, title: str, dtype: str) -> bool:
    """Whether a call is known to refuse what this mode would give it. An operator's refusal is not without effect: the
    framework drops what it holds, and operators with random numbers of their own begin anew."""
    if mode != TO_CPU or dtype != "float32" or not title.startswith(_OPERATORS):
        return False
    return bool(_NO_DOUBLE.search(title))


class DryRuns:
    """Over the steps of a run."""

    def __init__(self) -> None:
        self._known: dict[Key, bool] = {}
        self._waiting: set[Key] = set()
        self._held: list[Held] = []
        self._bytes = 0
        self.missed = 0
        self.random = ""
        """A call that has drawn random numbers which only its operator keeps."""

    def trusts(self, key: Key, listed: bool) -> bool:
        """Whether this call may be run raised here and now."""
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
                f"free_benchmark: after the failed second run of {key[1]}, {self.random} and the like may draw other "
                "random numbers than without msprobe."
            )

    def refuse(self, key: Key) -> None:
        """Known not to run, without having been tried."""
        self._known[key] = False

    def wants(self, key: Key, size: int) -> bool:
        """Whether this call is to be held: the first of its kind always, others as far as memory allows."""
        if key in self._waiting and self._bytes + size > _BUDGET:
            self.missed += 1
            return False
        self._waiting.add(key)
        self._bytes += size
        return True

    def hold(self, held: Held) -> None:
        self._held.append(held)

    def take(self) -> list[Held]:
        """What is to be tried now; nothing is held any more."""
        held, self._held = self._held, []
        self._waiting.clear()
        self._bytes = 0
        return held
