"""Holds gradients of MindSpore until all gradients of a call have come."""

from __future__ import annotations

from typing import NamedTuple

from mindspore._c_expression import TensorPy

from msprobe.collect.gradients import held_gradients
from msprobe.collect.gradients.backward_record import BackwardRecord
from msprobe.frameworks.mindspore.tensors import Array
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.stats import dtypes


class Snapshot(NamedTuple):
    """The values of a tensor in our own numpy memory: a sum over several edges, or a copy taken before a call."""

    array: Array
    row: dtypes.Dtype


class HeldGradients(held_gradients.HeldGradients, Gradients):
    kinds = (TensorPy, Snapshot)

    def _write_sum(self, record: BackwardRecord, position: int, held: tuple[Array, dtypes.Dtype]) -> None:
        record.outgoing[position] = Snapshot(*held)
