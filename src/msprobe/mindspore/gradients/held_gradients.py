"""Gradients that are held, as tensors, until all of one call's have come: for tasks that look at them together."""

from __future__ import annotations

from typing import Any, NamedTuple

from mindspore._c_expression import TensorPy

from msprobe.frameworks.mindspore.tensors import Array
from msprobe.mindspore.gradients.call_gradients import Gradients, Places, _Backward
from msprobe.stats import dtypes


class Snapshot(NamedTuple):
    """Values of a tensor in numpy memory of our own: a sum over several edges, or a copy taken before a call."""

    array: Array
    row: dtypes.Dtype


class HeldGradients(Gradients):
    """`_judge` sees each backward once, and nothing is held after it."""

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        """A tensor, a Snapshot or None for every output and every tensor argument of the call."""
        raise NotImplementedError

    def _take_incoming(self, record: _Backward, places: Places, grads: Any) -> None:
        for position, number in places:
            record.incoming[position] = grads[number]

    def _write_outgoing(self, record: _Backward, position: int, grad: Any) -> None:
        record.outgoing[position] = grad

    def _write_sum(self, record: _Backward, position: int, array: Array, row: dtypes.Dtype) -> None:
        record.outgoing[position] = Snapshot(array, row)

    def _write(self, record: _Backward) -> None:
        record.done = True
        incoming = [_gradient(grad) for grad in record.incoming]
        outgoing = [_gradient(grad) for grad in record.outgoing]
        record.incoming, record.outgoing = [], []
        if not self._recorder.closed:
            self._judge(record, incoming, outgoing)


def _gradient(grad: Any) -> Any:
    return grad if isinstance(grad, (TensorPy, Snapshot)) else None
