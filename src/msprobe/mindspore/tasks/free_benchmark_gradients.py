"""The backward stage of free_benchmark on MindSpore.

The second backward runs inside the hook that gets the gradients of the first. An operator that fails there does not
end the differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy

from msprobe.collect.gradients.backward_record import BackwardRecord
from msprobe.frameworks.mindspore.tensors import row_of
from msprobe.mindspore.executor import clear_after_error
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.mindspore.gradients.held_gradients import HeldGradients, Snapshot
from msprobe.mindspore.tasks.dry_runs import has_no_double
from msprobe.mindspore.tasks.perturb import array_of
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC, dtypes, render_array
from msprobe.tasks.free_benchmark.backward import BackwardCheck
from msprobe.tasks.free_benchmark.perturbation import NotChanged, change_arguments, map_leaves

if TYPE_CHECKING:
    from msprobe.mindspore.tasks.free_benchmark_calls import FreeBenchmarkApis
    from msprobe.mindspore.tasks.second_run import MindSporeSecondRun, Random

_vector_jacobian = ops.GradOperation(get_all=True, sens_param=True)


class FirstRun(NamedTuple):
    """A forward call, for the second run of its backward. MindSpore has no version counter, so digests show changes."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    marks: list[Optional[str]]
    random: Optional[Random]
    stack: int


def digests(tensors: Sequence[Any]) -> list[Optional[str]]:
    found: list[Optional[str]] = []
    for tensor in tensors:
        row = row_of(tensor)
        found.append(None if row is None else render_array(array_of(tensor), row.code, CRC)[1])
    return found


class FreeBenchmarkGradients(HeldGradients):
    """Compares the gradients of a call with those at the changed input."""

    apis: FreeBenchmarkApis

    def __init__(self, recorder: Any, texts: TensorTexts, second: MindSporeSecondRun) -> None:
        super().__init__(recorder, texts)
        self.checks = BackwardCheck(second, self)
        self._second = second

    def close(self) -> None:
        super().close()
        self.checks.close()

    def find_obstacle(self, kept: FirstRun, title: str, dtype: str) -> str:
        if has_no_double(self._second.mode, title, dtype):
            return "MindSpore has no float64 for it"
        changed = digests(tensors_in((kept.args, kept.kwargs), [])) != kept.marks
        return "its input was changed before its gradient came" if changed else ""

    def run_again(self, kept: FirstRun, incoming: Sequence[Any], first: Sequence[Any]) -> list[Any]:
        try:
            with ExitStack() as stack:
                self.apis.without_checks(stack)
                self._second.isolate(kept.random, stack)
                return _gradients_again(self._second, kept, incoming, first)
        except NotChanged:
            raise
        except Exception:
            clear_after_error()  # otherwise a differentiation that failed in Python stays open
            raise

    def _judge(self, record: BackwardRecord, incoming: list[Any], outgoing: list[Any]) -> None:
        self.checks.check(record.name, [*map(_tensor, incoming)], [*map(_tensor, outgoing)], record.shared)


def _gradients_again(
    second: MindSporeSecondRun, kept: FirstRun, given: Sequence[Any], first: Sequence[Any]
) -> list[Any]:
    args, kwargs = map_leaves((kept.args, kept.kwargs), (TensorPy,), _alias)
    args, kwargs = change_arguments(second.mode, args, kwargs, second.perturbations)
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

        new_args, new_kwargs = map_leaves((args, kwargs), (TensorPy,), put)
        outputs = tensors_in(kept.func(*new_args, **new_kwargs), [])
        return tuple(
            output if output.dtype == grad.dtype else ops.cast(output, grad.dtype)
            for output, grad in zip(outputs, given)
            if grad is not None
        )

    sens = tuple(grad for grad in given if grad is not None)
    made = iter(_vector_jacobian(function)(*(leaves[place] for place in wanted), sens))
    results: list[Any] = [None] * len(leaves)
    for place in wanted:
        results[place] = next(made)
        results[place].asnumpy()
    return results


def _tensor(grad: Any) -> Any:
    """A gradient that msprobe has summed over several edges is a numpy array."""
    return Tensor.from_numpy(grad.array) if isinstance(grad, Snapshot) else grad


def _alias(tensor: Any) -> Any:
    """A new tensor with the same values, outside every graph."""
    return Tensor.from_numpy(array_of(tensor))


def _differentiable(tensor: Any) -> bool:
    row = row_of(tensor)
    return row is not None and row.kind in (dtypes.FLOAT, dtypes.COMPLEX)
