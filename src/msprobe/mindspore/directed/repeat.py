"""Runs one call again, many times, where the script makes it: does it always return the same bytes?

The inputs are copies. The random state is that of the first run, and is restored afterwards. A call that draws random
numbers is never repeated: operators keep a state of their own, which cannot be restored.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable

import numpy as np
from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy

from msprobe.frameworks.mindspore.tensors import copy_values, has_values, row_of
from msprobe.mindspore.directed.generators import operator_counters
from msprobe.mindspore.executor import no_grad
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.mindspore.tasks.perturb import copy_of
from msprobe.mindspore.tasks.second_run import Random
from msprobe.stats import dtypes
from msprobe.tasks.free_benchmark.perturbation import map_leaves


class RandomState:
    """The state of everything that a call may draw from."""

    def __init__(self) -> None:
        self._random = Random.now(host=True)
        self._counters = dict(operator_counters())

    def put_back(self) -> None:
        self._random.put_back()
        counters = operator_counters()
        counters.clear()
        counters.update(self._counters)


def copy_arguments(values: Any) -> Any:
    """The arguments with copies of all tensors."""
    return map_leaves(values, (TensorPy,), copy_of)


def repeat_forward(call: Callable[..., Any], values: Any, before: RandomState, times: int) -> dict[str, Any]:
    """Returns the number of different results."""

    def once() -> str:
        args, kwargs = copy_arguments(values)
        with no_grad():
            return _digest(call(*args, **kwargs))

    return _repeat(once, before, times)


def repeat_backward(call: Callable[..., Any], values: Any, before: RandomState, times: int) -> dict[str, Any]:
    """The same for the gradients of a call, for a fixed incoming gradient. Not while MindSpore differentiates."""
    args, kwargs = values
    places = [at for at, one in enumerate(args) if _is_float(one)]

    def once() -> str:
        given, named = copy_arguments((args, kwargs))

        def forward(*tensors: Any) -> Any:
            complete = list(given)
            for at, one in zip(places, tensors):
                complete[at] = one
            return tuple(one for one in tensors_in(call(*complete, **named), []) if _is_float(one))

        outputs, pull = ops.vjp(forward, *(given[at] for at in places))
        drawn = np.random.default_rng(0)
        incoming = [Tensor(drawn.standard_normal(one.shape).astype(np.float32), one.dtype) for one in outputs]
        return _digest(pull(*incoming))

    return _repeat(once, before, times)


def _repeat(once: Callable[[], str], before: RandomState, times: int) -> dict[str, Any]:
    after = RandomState()
    results = set()
    try:
        for _ in range(times):
            before.put_back()
            results.add(once())
    finally:
        after.put_back()
    return {"times": times, "results": len(results)}


def _is_float(value: Any) -> bool:
    row = row_of(value) if isinstance(value, TensorPy) else None
    return row is not None and row.kind == dtypes.FLOAT


def _digest(value: Any) -> str:
    """A checksum of all tensors in a value: dtype, shape and bytes."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors_in(value, []):
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if has_values(tensor):
            found.update(copy_values(tensor)[0].tobytes())
    return found.hexdigest()
