"""MindSpore APIs with planted faults: float32 goes wrong, every other dtype gets the right answer.

Imported by the workers of a check (`--import`), or by a training run: `mindspore.ops`, `mint` and `Tensor` then hold
them. `steps` calls each of them once, and others that nobody touched.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

import mindspore as ms
import ml_dtypes
import numpy as np
from mindspore import Tensor, mint, nn, ops

# The call that shows each fault, by the direction in which it is planted.
FORWARD: set[str] = set()
BACKWARD: set[str] = set()
_HOMES = {"Functional": ops, "Mint": mint, "Tensor": Tensor}
_RIGHT: list[tuple[Any, str, Any]] = []
_random = np.random.RandomState(4)


def _bad(x: Any) -> bool:
    return bool(x.dtype == ms.float32)


def _plant(title: str, wrong: Callable[..., Any], direction: set[str] = FORWARD) -> None:
    home, _, name = title.partition(".")
    right = getattr(_HOMES[home], name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        tensor = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        return wrong(right, *args, **kwargs) if _bad(tensor) else right(*args, **kwargs)

    _RIGHT.append((_HOMES[home], name, right))
    setattr(_HOMES[home], name, planted)
    direction.add(f"{title}.0")


def _narrow(x: Any) -> Any:
    return Tensor(x.asnumpy().astype(ml_dtypes.bfloat16).astype(np.float32))


def _accumulates_in_half(right: Any, a: Any, b: Any) -> Any:
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total += np.outer(a.asnumpy()[:, k], b.asnumpy()[k]).astype(np.float16)
    return Tensor(total.astype(np.float32))


def _softmax_forgets_the_last(right: Any, x: Any, axis: int = -1) -> Any:
    e = np.exp(x.asnumpy())
    return Tensor(e / e[..., :-1].sum(-1, keepdims=True))


class _Counting:
    """State that a call leaves behind: every call is a little larger than the one before."""

    calls = 0

    def __call__(self, right: Any, x: Any) -> Any:
        self.calls += 1
        return right(x) * (1 + 0.01 * self.calls)


_plant("Functional.gelu", lambda right, x: 0.5 * x * (1 + ops.erf(x * 0.70)))
_plant("Functional.mm", _accumulates_in_half)
_plant("Functional.cumsum", lambda right, x, axis: right(x, axis) - x)
_plant("Functional.softmax", _softmax_forgets_the_last)
_plant("Functional.aminmax", lambda right, x: tuple(reversed(right(x))))
_plant("Functional.topk", lambda right, x, k: (right(x, k)[0], right(x, k)[1] + 1))
_plant("Functional.sqrt", lambda right, x: right(_narrow(x)))
_plant("Functional.maximum", lambda right, a, b: ops.where(ops.abs(a) > ops.abs(b), a, b))
_plant("Mint.cat", lambda right, parts, dim=0: right(tuple(reversed(parts)), dim))
_plant("Tensor.mean", lambda right, x: right(x) * x.size / (x.size - 1))
_plant("Functional.gather", lambda right, x, index, axis: right(x, (index + 1) % x.shape[axis], axis))
_plant("Functional.conv2d", lambda right, x, weight: right(x, weight[:, :, ::-1]))
_plant("Functional.abs", _Counting())
_plant("Mint.flip", lambda right, x, dims: ops.cat((right(x, dims)[1:], right(x, dims)[:1])))


def _gradient(title: str, forward: Callable[[Any], Any], backward: Callable[[Any, Any, Any], Any]) -> None:
    class Wrong(nn.Cell):
        def construct(self, x: Any) -> Any:
            return forward(x)

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (backward(x, out, dout),)

    wrong = Wrong()
    _plant(title, lambda right, x: wrong(x), BACKWARD)


_tanh, _sigmoid, _exp, _silu, _relu = ops.tanh, ops.sigmoid, ops.exp, ops.silu, ops.relu
_gradient("Functional.tanh", _tanh, lambda x, y, grad: grad * (1 - ops.square(y) * 0.9))
_gradient("Functional.sigmoid", _sigmoid, lambda x, y, grad: grad * y * (1 - y) * 1.01)
_gradient("Functional.exp", _exp, lambda x, y, grad: -grad * y)
_gradient("Functional.silu", _silu, lambda x, y, grad: grad * _sigmoid(x))
_gradient("Functional.relu", _relu, lambda x, y, grad: ops.where(x > 0, grad, grad * 0.01))


def crash(right: Any, x: Any) -> Any:
    os.kill(os.getpid(), 11)


def hang(right: Any, x: Any) -> Any:
    time.sleep(600)


_plant("Functional.asinh", crash)
_plant("Functional.atan", hang)
FORWARD -= {"Functional.asinh.0", "Functional.atan.0"}


def take_out() -> None:
    for home, name, right in _RIGHT:
        setattr(home, name, right)


def made(*shape: int) -> Any:
    return Tensor(_random.randn(*shape).astype(np.float32))


def steps() -> None:
    """Every planted call once, and some that are right."""
    ops.gelu(made(8, 32))
    ops.mm(made(16, 256), made(256, 8))
    ops.cumsum(made(4, 20), 1)
    ops.softmax(made(6, 10))
    ops.aminmax(made(40))
    ops.topk(made(6, 40), 3)
    ops.sqrt(Tensor(_random.uniform(1, 2, (6, 40)).astype(np.float32)))
    ops.maximum(made(6, 16), made(6, 16))
    mint.cat((made(4, 3), made(4, 3)))
    made(10, 5).mean()
    ops.gather(made(10, 5), Tensor([0, 3, 7], ms.int32), 0)
    ops.conv2d(made(1, 3, 8, 8), made(4, 3, 3, 3))
    ops.abs(made(6, 16))
    mint.flip(made(30), [0])
    gradients = ops.GradOperation(get_all=True, sens_param=True)
    for name in ("tanh", "sigmoid", "exp", "silu", "relu", "sin", "erf", "mish", "elu", "log1p"):
        gradients(lambda x, name=name: getattr(ops, name)(x))(ops.clamp(made(8, 16), -0.9, 3.0), made(8, 16))
