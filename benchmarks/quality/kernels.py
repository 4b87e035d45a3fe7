"""Faulty kernels: an operator of PyTorch computes wrong results while one module runs, forward or backward.

The operator's CPU kernel is replaced below autograd and below anything that records calls, so that the run looks as it
does on a device whose kernel is wrong: the same calls, the same arguments, other numbers. The replacement computes in
numpy on the tensor's memory, hence without a call of PyTorch.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from edits import wrap
from torch import Tensor
from training import Experiment, Plant

DTYPES: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.bfloat16: ml_dtypes.bfloat16,
}
Kernel = Callable[..., np.ndarray]


def memory(tensor: Tensor) -> np.ndarray:
    """The tensor's elements as an array that shares its memory."""
    dtype = np.dtype(DTYPES[tensor.dtype])
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    raw = (ctypes.c_uint8 * (length * dtype.itemsize)).from_address(tensor.data_ptr())
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    return np.lib.stride_tricks.as_strided(np.frombuffer(raw, dtype=dtype), tuple(tensor.shape), strides)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def silu_backward(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    s = _sigmoid(x)
    return gradient * s * (1 + x * (1 - s))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def threshold_backward(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    return gradient * (x > 0)


def tanh(x: np.ndarray) -> np.ndarray:
    return np.tanh(x)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mm(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


KERNELS: dict[str, tuple[Kernel, int]] = {
    "silu": (silu, 1),
    "silu_backward": (silu_backward, 2),
    "relu": (relu, 1),
    "threshold_backward": (threshold_backward, 2),
    "tanh": (tanh, 1),
    "_softmax": (softmax, 1),
    "mm": (mm, 2),
}
"""operator: (its arithmetic, how many of its arguments are tensors)."""


def faulty_kernel(path: str, operator: str, factor: float) -> Plant:
    """The operator's results are wrong by a factor while the module at `path` runs forward or backward."""

    def plant(run: Experiment) -> None:
        module = run.module(path)
        active = [False]
        compute, count = KERNELS[operator]

        def kernel(*args: Any) -> Tensor:
            arrays = [memory(one).astype(np.float64) for one in args[:count]]
            result = compute(*arrays)
            if active[0]:
                result = result * factor
            out = torch.ops.aten.empty.memory_format(list(result.shape), dtype=args[0].dtype)
            memory(out)[...] = result.astype(DTYPES[args[0].dtype])
            return out

        library = torch.library.Library("aten", "IMPL", "CPU")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
            library.impl(operator, kernel)
        run.patches.callback(library._destroy)

        def change(forward: Callable[..., Any], *inner: Any, **options: Any) -> Any:
            active[0] = not operator.endswith("backward")
            result = forward(*inner, **options)
            active[0] = False
            return result

        wrap(module, change)
        if operator.endswith("backward"):
            module.register_full_backward_pre_hook(lambda *_: active.__setitem__(0, True))
            module.register_full_backward_hook(lambda *_: active.__setitem__(0, False))

    return plant
