"""The backward stage of free_benchmark: the gradients of a call at the changed input against those that it had.

The second backward runs inside the hook where the first one's gradients have come; there a failing operator
ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy

from msprobe.frameworks.mindspore.tensors import row_of
from msprobe.mindspore.executor import clear_after_error
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.mindspore.gradients.call_gradients import _Backward
from msprobe.mindspore.gradients.held_gradients import HeldGradients, Snapshot
from msprobe.mindspore.tasks.dry_runs import has_no_double
from msprobe.mindspore.tasks.perturb import array_of
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC, dtypes, render_array
from msprobe.tasks.free_benchmark.perturbation import NotChanged, changed, mapped
from msprobe.tasks.free_benchmark.second_run import Call, short

if TYPE_CHECKING:
    from msprobe.mindspore.tasks.free_benchmark_calls import FreeBenchmarkApis
    from msprobe.mindspore.tasks.second_run import Random, Second

_vector_jacobian = ops.GradOperation(get_all=True, sens_param=True)


class Kept(NamedTuple):
    """A forward call, for the second run of its backward; MindSpore counts no versions, so digests tell a change."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    marks: list[Optional[str]]
    random: Optional[Random]
    place: int


def digests(tensors: Sequence[Any]) -> list[Optional[str]]:
    found: list[Optional[str]] = []
    for tensor in tensors:
        row = row_of(tensor)
        found.append(None if row is None else render_array(array_of(tensor), row.code, CRC)[1])
    return found


class FreeBenchmarkGradients(HeldGradients):
    """Compares the gradients of a call with those at the changed input."""

    apis: FreeBenchmarkApis

    def __init__(self, recorder: Any, texts: TensorTexts, second: Second) -> None:
        super().__init__(recorder, texts)
        self.second = second
        self._kept: dict[str, Kept] = {}

    def keep(self, name: str, kept: Kept) -> None:
        self._kept[name] = kept

    def close(self) -> None:
        super().close()
        self._kept.clear()

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        kept = self._kept.pop(record.name, None)
        second = self.second
        if kept is None or all(grad is None for grad in incoming):
            return
        name = record.name.rpartition(".")[0]
        title = name.rpartition(".")[0]
        target = second.first_float(kept.args, kept.kwargs)
        if target is None:
            return
        if has_no_double(second.mode, title, second.dtype(target)):
            second.run.leave_out(title, "MindSpore has no float64 for it")
            return
        if digests(tensors_in((kept.args, kept.kwargs), [])) != kept.marks:
            second.run.leave_out(title, "what it received was changed before its gradient came")
            return
        first = [None if position in record.shared else _tensor(grad) for position, grad in enumerate(outgoing)]
        call = Call(name, second.dtype(target), str(target.dtype), tuple(target.shape), first, len(outgoing) > 1)
        try:
            with ExitStack() as stack:
                self.apis.quietly(stack)
                second.apart(kept.random, stack)
                given = [_tensor(grad) for grad in incoming]
                again = _gradients_again(second, kept, given, first)
            found = second.differences(call, again, "backward", given)
        except NotChanged:
            return
        except Exception as error:
            clear_after_error()  # a differentiation that has failed in Python stays open otherwise
            second.run.leave_out(title, f"its backward cannot be run again, {type(error).__name__}: {short(error)}")
            return
        second.judge(call, "backward", found, lambda: kept.place)


def _gradients_again(second: Second, kept: Kept, given: list[Any], first: list[Any]) -> list[Any]:
    """The gradients of the arguments at the changed input, in argument order; None where there was none."""
    args, kwargs = mapped((kept.args, kept.kwargs), (TensorPy,), _alias)
    args, kwargs = changed(second.mode, args, kwargs, second.ways)
    leaves = tensors_in((args, kwargs), [])
    wanted = [place for place, leaf in enumerate(leaves) if first[place] is not None and _differentiable(leaf)]
    if not wanted:
        raise NotChanged

    def function(*inputs: Any) -> Any:
        at = iter(range(len(leaves)))
        replaced = dict(zip(wanted, inputs))

        def put(leaf: Any) -> Any:
            place = next(at)
            return replaced.get(place, leaf)

        new_args, new_kwargs = mapped((args, kwargs), (TensorPy,), put)
        outputs = tensors_in(kept.func(*new_args, **new_kwargs), [])
        return tuple(
            output if output.dtype == grad.dtype else ops.cast(output, grad.dtype)
            for output, grad in zip(outputs, given)
            if grad is not None
        )

    sens = tuple(grad for grad in given if grad is not None)
    made = iter(_vector_jacobian(function)(*(leaves[place] for place in wanted), sens))
    answers: list[Any] = [None] * len(leaves)
    for place in wanted:
        answers[place] = next(made)
        answers[place].asnumpy()
    return answers


def _tensor(grad: Any) -> Any:
    """A gradient that is a sum over several edges is in memory of our own."""
    return Tensor.from_numpy(grad.array) if isinstance(grad, Snapshot) else grad


def _alias(tensor: Any) -> Any:
    """The same values as a tensor of our own, outside of every graph."""
    return Tensor.from_numpy(array_of(tensor))


def _differentiable(tensor: Any) -> bool:
    row = row_of(tensor)
    return row is not None and row.kind in (dtypes.FLOAT, dtypes.COMPLEX)
