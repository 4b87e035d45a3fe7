"""Holds gradients as tensors until all gradients of a call have come: for tasks that judge them together."""

from __future__ import annotations

from typing import Any

from msprobe.collect.gradients.backward_record import BackwardRecord, Places
from msprobe.collect.gradients.call_gradients import CallGradients


class HeldGradients(CallGradients):
    """Calls `_judge` once for each backward, and holds nothing after it. `kinds` are the types of a gradient."""

    kinds: tuple[type, ...]

    def _judge(self, record: BackwardRecord, incoming: list[Any], outgoing: list[Any]) -> None:
        """A gradient or None for every output and every tensor argument of the call."""
        raise NotImplementedError

    def _may_want(self, backward: str, parents: list[str]) -> bool:
        """The task asked the selection about the forward call, under each of its names."""
        return True

    def _wants(self, record: BackwardRecord) -> bool:
        return True

    def _take_incoming(self, record: BackwardRecord, places: Places, grads: Any) -> None:
        for position, number in places:
            record.incoming[position] = grads[number]

    def _write_outgoing(self, record: BackwardRecord, position: int, grad: Any) -> None:
        record.outgoing[position] = grad

    def _write(self, record: BackwardRecord) -> None:
        record.done = True
        incoming = [grad if isinstance(grad, self.kinds) else None for grad in record.incoming]
        outgoing = [grad if isinstance(grad, self.kinds) else None for grad in record.outgoing]
        record.incoming, record.outgoing = [], []
        if not self._recorder.closed:
            self._judge(record, incoming, outgoing)
