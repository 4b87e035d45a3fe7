"""Tensors as text: the adapter between MindSpore and the statistics, the rendering and the tensor files.

A tensor in host memory is read in place, through its address and strides: no MindSpore operator runs, and reading the
address waits until the runtime has filled the tensor. A tensor on a device is copied to the host first. No result is
cached between calls: MindSpore has no version counter that shows whether a tensor has changed. The exception is the
recording of one node of the backward graph (`unchanging`), where no tensor can change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional, Protocol

import numpy as np
from mindspore import Tensor
from mindspore._c_expression import TensorPy
from mindspore._c_expression import typing as kinds

from msprobe.collect.records.values import quoted, scalar_text
from msprobe.dump.tensor_files.codec import Payload
from msprobe.frameworks.mindspore.tensors import Array, address, bits, copy_values, payload, row_of, strides_of
from msprobe.mindspore.tensors.late_errors import keep_if_last
from msprobe.stats import dtypes, render, render_array

_SPARSE = ("COOTensor", "CSRTensor", "RowTensor", "RowTensorInner")


class FileWriter(Protocol):
    """The part of `RankWriter` that saves tensors."""

    def tensor(self, name: str, payload: Payload) -> str: ...

    def link(self, name: str, existing_data_name: str) -> str: ...


class _KnownText:
    """The text of a tensor, in two parts: the name of its file goes between them."""

    __slots__ = ("end", "file", "text")

    def __init__(self, text: str, end: str) -> None:
        self.text = text
        self.end = end
        self.file = ""


class TensorTexts:
    """The adapter of one step."""

    tensor_types = frozenset({Tensor})

    def __init__(self, want: int, files: Optional[FileWriter]) -> None:
        self._want = want
        self._files = files
        self._heads: dict[tuple[int, tuple[int, ...]], str] = {}
        self._known: Optional[dict[int, _KnownText]] = None

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Inside this block no tensor changes or is freed: each is measured and written only once."""
        self._known = {}
        try:
            yield
        finally:
            self._known = None

    def tensor_text(self, tensor: Any, path: str) -> str:
        try:
            row = row_of(tensor)
            shape = tensor._shape
            on_host = tensor.device == "CPU"
            pointer = address(tensor)
        except Exception as error:  # the operator that should fill it has failed: the script gets the same error
            keep_if_last(error, lambda: (row_of(tensor), tensor._shape, tensor.device, address(tensor)))
            return f'{{"type": "mindspore.Tensor", "unreadable": {quoted(_short(error))}}}'
        if row is None or (not pointer and 0 not in shape):
            return self._without_values(tensor, shape)
        if not on_host:
            return self.array_text(bits(tensor.asnumpy(), row), row, path)
        known = self._known.get(id(tensor)) if self._known is not None else None
        if known is None:
            strides = tuple(strides_of(tensor))
            numbers, digest, _ = render(pointer, row.code, shape, strides, self._want)
            text = f"{self._head(row, shape)}{numbers}" if numbers else self._head(row, shape)[:-2]
            known = _KnownText(text, f', "md5": "{digest}"}}' if digest is not None else "}")
            if self._known is not None:
                self._known[id(tensor)] = known
        if not path or self._files is None:
            return known.text + known.end
        if known.file:
            name = self._files.link(path, known.file)
        else:
            name = known.file = self._files.tensor(path, payload(pointer, row, shape, tuple(strides_of(tensor))))
        return f'{known.text}, "data_name": {quoted(name)}{known.end}'

    def array_text(self, array: Array, row: dtypes.Dtype, path: str) -> str:
        """As `tensor_text`, for values in a numpy array, in the form that `bits` returns."""
        numbers, digest, _ = render_array(array, row.code, self._want)
        text = f"{self._head(row, array.shape)}{numbers}" if numbers else self._head(row, array.shape)[:-2]
        if path and self._files is not None:
            data = np.ascontiguousarray(array).tobytes()
            name = self._files.tensor(path, Payload(row.name, array.shape, data, "npy"))
            text = f'{text}, "data_name": {quoted(name)}'
        return f'{text}, "md5": "{digest}"}}' if digest is not None else f"{text}}}"

    def matrix(self, tensor: Any) -> Optional[Array]:
        """The values as an array of float32; None for a tensor that is no matrix of floats. No operator runs."""
        row = row_of(tensor) if isinstance(tensor, TensorPy) else None
        if row is None or row.kind != dtypes.FLOAT or row.numpy_dtype is None or len(tensor._shape) < 2:
            return None
        return np.asarray(copy_values(tensor)[0], np.float32) if 0 not in tensor._shape else None

    def other_text(self, value: Any, path: str) -> Optional[str]:
        if isinstance(value, TensorPy):
            return self.tensor_text(value, path)
        kind = type(value)
        if isinstance(value, kinds.Type):
            return scalar_text("mindspore.dtype", str(value))
        if isinstance(value, np.ndarray):
            return _numpy_text(value)
        if isinstance(value, np.generic):
            plain = value.item()
            return scalar_text(kind.__name__, plain) if isinstance(plain, (bool, int, float, str)) else None
        if kind.__name__ in _SPARSE:
            return f'{{"type": "mindspore.{kind.__name__}", "dtype": "{value.dtype}", "shape": {list(value.shape)}}}'
        return None

    def _head(self, row: dtypes.Dtype, shape: tuple[int, ...]) -> str:
        head = self._heads.get((row.code, shape))
        if head is None:
            head = f'{{"type": "mindspore.Tensor", "dtype": "{row.mindspore}", "shape": {list(shape)}, '
            self._heads[row.code, shape] = head
        return head

    @staticmethod
    def _without_values(tensor: Any, shape: Any) -> str:
        """The text of a tensor without values: an unknown type, or no memory yet."""
        return (
            f'{{"type": "mindspore.Tensor", "dtype": "{tensor._dtype}", "shape": {list(shape)}, '
            '"Max": null, "Min": null, "Mean": null, "Norm": null}'
        )


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _numpy_text(array: Array) -> str:
    head = f'{{"type": "numpy.ndarray", "dtype": {quoted(str(array.dtype))}, "shape": {list(array.shape)}'
    if dtypes.of_numpy(array.dtype) is None:
        return head + "}"
    return f"{head}, {render_array(array)[0]}}}"
