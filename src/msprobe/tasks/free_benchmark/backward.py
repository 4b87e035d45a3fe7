"""The backward stage of free_benchmark: compares the gradients of a call at the changed input with the original
ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msprobe.tasks.free_benchmark.perturbation import NotChanged
from msprobe.tasks.free_benchmark.second_run import SecondRun, short


class KeptCall(Protocol):
    """A forward call, kept until its gradients come. `stack` numbers the place of the call."""

    @property
    def args(self) -> Any: ...

    @property
    def kwargs(self) -> Any: ...

    @property
    def stack(self) -> int: ...


class BackwardRun(Protocol):
    """How a framework runs a backward again."""

    def find_obstacle(self, kept: Any, title: str, dtype: str) -> str:
        """Why this call cannot run again, or an empty text."""

    def run_again(self, kept: Any, incoming: Sequence[Any], first: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the arguments at the changed input, in argument order; None if there is none.

        `first` are the original gradients. Raises NotChanged if there is nothing to compare.
        """


class BackwardCheck:
    """The calls of one step whose gradients are compared."""

    def __init__(self, second: SecondRun, backward: BackwardRun) -> None:
        self._second = second
        self._backward = backward
        self._kept: dict[str, KeptCall] = {}

    def keep(self, name: str, kept: KeptCall) -> None:
        self._kept[name] = kept

    def close(self) -> None:
        self._kept.clear()

    def check(self, backward: str, incoming: list[Any], outgoing: list[Any], shared: Sequence[int]) -> None:
        """All gradients of the call have come. `shared` numbers the arguments that share one gradient."""
        kept = self._kept.pop(backward, None)
        second = self._second
        if kept is None or all(grad is None for grad in incoming):
            return
        name = backward.rpartition(".")[0]
        title = name.rpartition(".")[0]
        target = second.first_float(kept.args, kept.kwargs)
        if target is None:
            return
        obstacle = self._backward.find_obstacle(kept, title, second.dtype(target))
        if obstacle:
            second.run.skip(title, obstacle)
            return
        first = [None if position in shared else grad for position, grad in enumerate(outgoing)]
        call = second.make_call(name, target, first, len(outgoing) > 1)
        try:
            again = self._backward.run_again(kept, incoming, first)
            differences = second.differences(call, again, "backward", incoming)
        except NotChanged:
            second.run.unchanged += 1
            return
        except Exception as error:
            second.run.skip(title, f"its backward cannot be run again, {type(error).__name__}: {short(error)}")
            return
        second.judge(call, "backward", differences, lambda: kept.stack)
