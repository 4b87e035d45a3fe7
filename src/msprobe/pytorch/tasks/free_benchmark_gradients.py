"""The backward stage of free_benchmark on PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import torch

from msprobe.collect.gradients.backward_record import BackwardRecord
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.gradients.held_gradients import HeldGradients
from msprobe.pytorch.tasks.perturb import change_arguments, map_leaves
from msprobe.tasks.free_benchmark.backward import BackwardCheck
from msprobe.tasks.free_benchmark.perturbation import NotChanged

if TYPE_CHECKING:
    from msprobe.pytorch.tasks.second_run import TorchSecondRun


class FirstRun(NamedTuple):
    """A forward call, for the second run of its backward."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    versions: list[tuple[Any, int]]
    random: Optional[list[Any]]
    autocast: dict[str, Any]
    stack: int


class FreeBenchmarkGradients(HeldGradients):
    """Compares the gradients of a call with those at the changed input."""

    def __init__(self, recorder: Recorder, second: TorchSecondRun) -> None:
        super().__init__(recorder)
        self.checks = BackwardCheck(second, self)
        self._second = second
        # A backward inside a hook of another one would take over the other's nodes: it needs its own thread.
        self._thread: Optional[ThreadPoolExecutor] = None

    def close(self) -> None:
        super().close()
        self.checks.close()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def find_obstacle(self, kept: FirstRun, title: str, dtype: str) -> str:
        changed = any(tensor._version != version for tensor, version in kept.versions)
        return "its input was changed before its gradient came" if changed else ""

    def run_again(self, kept: FirstRun, incoming: Sequence[Any], first: Sequence[Any]) -> list[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "msprobe-free-benchmark")
        return self._thread.submit(_gradients_again, self._second, kept, incoming).result()

    def _judge(self, record: BackwardRecord, incoming: list[Any], outgoing: list[Any]) -> None:
        self.checks.check(record.name, incoming, outgoing, record.shared)


def _gradients_again(second: TorchSecondRun, kept: FirstRun, incoming: Sequence[Any]) -> list[Any]:
    flags = [tensor.requires_grad for tensor, _ in kept.versions]
    with ExitStack() as stack:
        second.isolate(kept.random, stack)
        for kind, dtype in kept.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype))
        args, kwargs = map_leaves((kept.args, kept.kwargs), _detach)
        with torch.no_grad():
            args, kwargs = change_arguments(second.mode, args, kwargs)
        leaves: list[Any] = []

        def as_leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            wanted = flags[len(leaves)]
            leaves.append(value.detach().requires_grad_(wanted and (value.is_floating_point() or value.is_complex())))
            return leaves[-1]

        args, kwargs = map_leaves((args, kwargs), as_leaf)
        with torch.enable_grad():
            outputs = tensors_in(kept.func(*args, **kwargs), [])
        pairs = [
            (out, grad.to(out.device, out.dtype))
            for out, grad in zip(outputs, incoming)
            if grad is not None and out.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs or not wanted:
            raise NotChanged
        made = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return [next(made) if leaf.requires_grad else None for leaf in leaves]


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
