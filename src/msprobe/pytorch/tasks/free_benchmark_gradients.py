"""The backward stage of free_benchmark: the gradients of a call at the changed input against those that it had."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import torch

from msprobe.collect.recorder import Recorder
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.gradients.call_gradients import _Backward
from msprobe.pytorch.gradients.held_gradients import HeldGradients
from msprobe.pytorch.tasks.perturb import changed, first_float, mapped
from msprobe.tasks.free_benchmark.perturbation import NotChanged
from msprobe.tasks.free_benchmark.second_run import Call, short

if TYPE_CHECKING:
    from msprobe.pytorch.tasks.free_benchmark_calls import Second


class Kept(NamedTuple):
    """A forward call, for the second run of its backward."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    versions: list[tuple[Any, int]]
    random: Optional[list[Any]]
    autocast: dict[str, Any]
    place: int


class FreeBenchmarkGradients(HeldGradients):
    """Compares the gradients of a call with those at the changed input."""

    def __init__(self, recorder: Recorder, second: Second) -> None:
        super().__init__(recorder)
        self._kept: dict[str, Kept] = {}
        self.second = second
        # A backward pass inside a hook of another one would take up the other's nodes: it has a thread of its own.
        self._thread: Optional[ThreadPoolExecutor] = None

    def keep(self, name: str, kept: Kept) -> None:
        self._kept[name] = kept

    def close(self) -> None:
        super().close()
        self._kept.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        kept = self._kept.pop(record.name, None)
        second = self.second
        if kept is None or all(grad is None for grad in incoming):
            return
        name = record.name.rpartition(".")[0]
        title = name.rpartition(".")[0]
        target = first_float(kept.args, kept.kwargs)
        if target is None:
            return
        if any(tensor._version != version for tensor, version in kept.versions):
            second.run.leave_out(title, "what it received was changed before its gradient came")
            return
        first = [None if position in record.shared else grad for position, grad in enumerate(outgoing)]
        call = Call(name, second.dtype(target), str(target.dtype), tuple(target.shape), first, len(outgoing) > 1)
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "msprobe-free-benchmark")
            again = self._thread.submit(_gradients_again, second, kept, incoming).result()
            differences = second.differences(call, again, "backward", incoming)
        except NotChanged:
            return
        except Exception as error:
            second.run.leave_out(title, f"its backward cannot be run again, {type(error).__name__}: {short(error)}")
            return
        second.judge(call, "backward", differences, lambda: kept.place)


def _gradients_again(second: Second, kept: Kept, incoming: list[Any]) -> list[Any]:
    """The gradients of the arguments at the changed input, in argument order; None where there is none."""
    flags = [tensor.requires_grad for tensor, _ in kept.versions]
    with ExitStack() as stack:
        second.apart(kept.random, stack)
        for kind, dtype in kept.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype))
        args, kwargs = mapped((kept.args, kept.kwargs), _detached)
        with torch.no_grad():
            args, kwargs = changed(second.mode, args, kwargs)
        leaves: list[Any] = []

        def as_leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            wanted = flags[len(leaves)]
            leaves.append(value.detach().requires_grad_(wanted and (value.is_floating_point() or value.is_complex())))
            return leaves[-1]

        args, kwargs = mapped((args, kwargs), as_leaf)
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


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
