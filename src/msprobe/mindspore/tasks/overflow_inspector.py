"""overflow_check on MindSpore: inspects tensors, and holds them until their gradients come.

MindSpore keeps the values that a gradient depends on, but not their Python objects: the inputs of a forward call are
gone when its gradient comes. msprobe keeps them alive that long, up to a limit, so that the gradient can be replayed.
"""

from __future__ import annotations

from typing import Any, Optional
from weakref import ref

import numpy as np
from mindspore import Parameter
from mindspore._c_expression import TensorPy

from msprobe.frameworks.mindspore.tensors import bits, copy_values, row_of
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.mindspore.gradients.held_gradients import Snapshot
from msprobe.mindspore.tensors.late_errors import keep_if_last
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import STATS, dtypes, measure, measure_array
from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.finiteness import FINITE, INFINITE, NAN, classify
from msprobe.stats.own_infinities import Signs, signs_of
from msprobe.stats.scan import FORMATS
from msprobe.tasks.overflow_check.open_calls import Holder

_SIMPLE = frozenset({type(None), bool, int, float, str})
_COMPLEX = {"complex64": FORMATS["float32"], "complex128": FORMATS["float64"]}
_address = TensorPy._data_ptr
_is_contiguous = TensorPy.is_contiguous


class OverflowTexts(TensorTexts):
    """Renders snapshots too."""

    def other_text(self, value: Any, path: str) -> Optional[str]:
        if isinstance(value, Snapshot):
            return self.array_text(value.array, value.row, path)
        return super().other_text(value, path)


class MindSporeTensorInspector:
    """Inspects a tensor in one pass over its bits, without a copy where it is in host memory."""

    budget = 256 << 20

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        found: list[Any] = []
        for value in args:
            if isinstance(value, TensorPy):
                found.append(value)
            elif type(value) not in _SIMPLE:
                tensors_in(value, found)
        return tensors_in(kwargs, found) if kwargs else found

    def look(self, tensor: Any, ranges: Optional[Ranges] = None, title: str = "") -> int:
        if isinstance(tensor, Snapshot):
            return _state(measure_array(tensor.array, tensor.row.code))
        try:
            row = row_of(tensor)
            if row is None or row.kind not in (dtypes.FLOAT, dtypes.COMPLEX):
                return FINITE
            if tensor.device != "CPU":
                return _state(measure_array(bits(tensor.asnumpy(), row), row.code))
            pointer = _address(tensor)
        except Exception as error:  # the operator that should fill it has failed: the script gets the same error
            keep_if_last(error, lambda: (row_of(tensor), tensor.device, _address(tensor)))
            return FINITE
        if not pointer:
            return FINITE
        code = FORMATS.get(row.name, _COMPLEX.get(row.name))
        if code is None or not _is_contiguous(tensor):
            return _state(measure(pointer, row.code, tensor._shape, tuple(tensor.stride()), STATS))
        count = tensor._size * (2 if row.name in _COMPLEX else 1)
        return classify(pointer, code, count, row.mindspore, ranges, title)

    def infinities(self, tensor: Any) -> Optional[Signs]:
        if isinstance(tensor, Snapshot):
            return signs_of(tensor.array)
        try:
            row = row_of(tensor)
            if row is None or row.kind not in (dtypes.FLOAT, dtypes.COMPLEX):
                return None
            return signs_of(copy_values(tensor)[0])
        except Exception:  # see `look`
            return None

    def version(self, tensor: Any) -> int:
        return 0

    def remembers(self, tensor: Any) -> bool:
        return False  # there is no version counter

    def versions(self, tensors: list[Any]) -> list[tuple[Any, int]]:
        return [(tensor, 0) for tensor in tensors]

    def copy(self, tensor: Any) -> Any:
        return tensor if row_of(tensor) is None else Snapshot(*copy_values(tensor))

    def hold(self, tensor: Any) -> Optional[Holder]:
        return _Weak(tensor) if isinstance(tensor, TensorPy) else None

    def size(self, tensor: Any) -> int:
        return 0 if isinstance(tensor, Parameter) else int(tensor._size) * int(tensor._itemsize)

    def fresh(self) -> None:
        """Does nothing: nothing is cached."""

    def circumstances(self) -> str:
        return ""


class _Weak(Holder):
    """A weak reference; ones replace a tensor that is gone."""

    __slots__ = ("row", "shape", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = ref(tensor)
        self.row = row_of(tensor)
        self.shape = tensor._shape

    def restored(self) -> tuple[Any, bool]:
        tensor = self.tensor()
        if tensor is not None:
            return tensor, True
        if self.row is None or self.row.numpy_dtype is None:
            return None, False
        return Snapshot(np.ones(self.shape, self.row.numpy_dtype), self.row), False


def _state(stats: Any) -> int:
    return NAN if stats.nan else INFINITE if stats.posinf or stats.neginf else FINITE
