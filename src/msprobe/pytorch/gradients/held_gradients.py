"""Gradients that are held, as tensors, until all of one call's have come: for tasks that look at them together."""

from __future__ import annotations

from typing import Any

import torch

from msprobe.pytorch.gradients.call_gradients import Gradients, _Backward


class HeldGradients(Gradients):
    """`_judge` sees each backward once, and nothing is held after it."""

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        raise NotImplementedError

    def _take_incoming(self, record: _Backward, places: Any, grads: Any) -> None:
        for position, number in places:
            record.incoming[position] = grads[number]

    def _write_outgoing(self, record: _Backward, position: int, grad: Any) -> None:
        record.outgoing[position] = grad

    def _write(self, record: _Backward) -> None:
        record.done = True
        incoming = [_tensor(grad) for grad in record.incoming]
        outgoing = [_tensor(grad) for grad in record.outgoing]
        record.incoming, record.outgoing = [], []
        if not self._recorder.closed:
            self._judge(record, incoming, outgoing)


def _tensor(grad: Any) -> Any:
    return grad if isinstance(grad, torch.Tensor) else None
