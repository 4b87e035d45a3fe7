"""Runs one PyTorch call: on the device under test, on the golden side, and with inputs changed by rounding.

The golden side is the same API on the CPU with every float one step wider (fp16 and bf16 in fp32, fp32 in fp64), dtype
arguments included. The backward runs if the dump has gradients for it.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable, Optional

import numpy as np
import torch

from msprobe.check.core import arguments, generate
from msprobe.check.core.arguments import NamedValue
from msprobe.check.core.framework import Load, Results
from msprobe.check.core.generate import NotMade
from msprobe.check.pytorch.resolve import ResolvedApi
from msprobe.dump.record_keys import INPUT

RAISED = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
for _name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    if hasattr(torch, _name):
        RAISED[getattr(torch, _name)] = torch.float32
_TUPLE_LAST = frozenset(("__getitem__", "__setitem__"))
_WRITES = frozenset(("batch_norm", "instance_norm"))  # they write running statistics in place
_ONE_RESULT = frozenset(("embedding_bag",))  # the other results are for its own backward and depend on the dtype


class TorchCall:
    """A call from a record, with its tensors in memory. Raises NotMade if that is not possible."""

    def __init__(
        self, found: ResolvedApi, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
    ) -> None:
        self._api, self._func = found
        self.api: str = self._api.name
        self.first_only = self._api.name in _ONE_RESULT
        self._name = name
        self._arguments = arguments.read(forward)
        self.tensors = [self._tensor(item, f"{name}.input.{n}", load) for n, item in enumerate(self._arguments.tensors)]
        self._wants = [
            bool(item.get("requires_grad")) and tensor.is_floating_point() | tensor.is_complex()
            for item, tensor in zip(self._arguments.tensors, self.tensors)
        ]
        self.incoming: list[Any] = []
        if backward is not None and any(self._wants):
            given = arguments.flat_records(backward.get(INPUT), nulls=True)
            self.incoming = [
                None if item is None else self._tensor(item, f"{name}.grad.{n}", load) for n, item in enumerate(given)
            ]
        self._shared = arguments.shared_gradients(backward, self._arguments.tensors)
        self._copies = self._api.inplace or self._api.name in _WRITES or self._writes_by_argument()

    def run(self, device: str) -> Results:
        """Runs on the device under test, in the recorded dtypes."""
        where = torch.device(device)
        return self._run([t.to(where) for t in self.tensors], self.incoming, where, lambda dtype: dtype)

    def golden(self) -> Results:
        tensors = [_widen(t) for t in self.tensors]
        incoming = [None if t is None else _widen(t) for t in self.incoming]
        return self._run(tensors, incoming, torch.device("cpu"), _wider_dtype)

    def moved(self, number: int, epsilon: float, within: bool) -> Results:
        """Runs the golden side again. Each float of the inputs is changed at random by at most `epsilon` of its value.

        With `within`, values stay between the smallest and largest value of their argument, as a probability needs.
        """
        random = torch.Generator().manual_seed(zlib.crc32(f"{self._name}.{number}".encode()))
        tensors = [_move(t, epsilon, random, within) for t in self.tensors]
        incoming = [None if t is None else _move(t, epsilon, random, False) for t in self.incoming]
        return self._run(tensors, incoming, torch.device("cpu"), _wider_dtype)

    def _run(self, tensors: list[Any], incoming: list[Any], where: Any, dtype_of: Callable[[Any], Any]) -> Results:
        backward = any(one is not None for one in incoming)
        leaves: list[Any] = [None] * len(tensors)
        if backward:
            for number, wanted in enumerate(self._wants):
                if wanted:
                    leaves[number] = tensors[number] = tensors[number].detach().requires_grad_()
        for number, first in self._shared.items():
            leaves[number], tensors[number] = None, tensors[first]
        if self._copies:
            tensors = [t.clone() for t in tensors]

        def named(value: NamedValue) -> Any:
            return _resolve_name(value, where, dtype_of)

        args = arguments.fill(self._arguments.args, tensors, named)
        kwargs = arguments.fill(self._arguments.kwargs, tensors, named)
        if self._api.name in _TUPLE_LAST and len(args) > 1 and isinstance(args[1], list):
            args[1] = tuple(args[1])
        random = False
        with torch.set_grad_enabled(backward):
            if self._api.random:
                torch.manual_seed(zlib.crc32(self._name.encode()))
                before = torch.get_rng_state()
                answer = self._func(*args, **kwargs)
                random = not torch.equal(before, torch.get_rng_state())
            else:
                answer = self._func(*args, **kwargs)
        if answer is None and self._copies and tensors:  # __setitem__ and similar functions return nothing
            answer = tensors[0]
        outputs = flat(answer)[: 1 if self.first_only else None]
        gradients = _gradients(outputs, incoming, leaves) if backward else []
        return Results([one.detach() for one in outputs], gradients, random)

    def _writes_by_argument(self) -> bool:
        args, kwargs, at = self._arguments.args, self._arguments.kwargs, self._api.inplace_at
        return bool(kwargs.get("inplace")) or "out" in kwargs or (0 <= at < len(args) and args[at] is True)

    def _tensor(self, item: dict[str, Any], seed: str, load: Load) -> Any:
        array = load(item)
        if array is None:
            dtype = _dtype(f"torch.{generate.row_of(item).name}")
            return torch.from_numpy(generate.make(item, seed)).to(dtype)
        return as_tensor(array)


def flat(value: Any) -> list[Any]:
    return arguments.flatten(value, (torch.Tensor,), torch.tensor)


def as_tensor(array: Any) -> Any:
    """A loaded array as a tensor, also for types that numpy does not have. The call may write to it."""
    array = np.require(array, requirements=["C", "W"])
    name = array.dtype.name
    if array.dtype.kind == "V" or name.startswith(("bfloat16", "float8")):
        plain = {1: np.uint8, 2: np.uint16}[array.dtype.itemsize]
        dtype = _dtype(f"torch.{name}")
        return torch.from_numpy(array.view(plain)).view(dtype)
    return torch.from_numpy(array)


def _gradients(outputs: list[Any], incoming: list[Any], leaves: list[Any]) -> list[Any]:
    """The gradients of the leaves. A recorded gradient is everything that reached its output. If a later output is
    computed from it (lstm_cell: h from c), it includes that part too. So it replaces the gradient that arrives there.
    """
    pairs = [
        (out, grad.to(out.device, out.dtype))
        for out, grad in zip(outputs, incoming)
        if grad is not None and out.requires_grad and grad.shape == out.shape
    ]
    wanted = [leaf for leaf in leaves if leaf is not None]
    if not pairs or not wanted:
        return []
    if len(pairs) > 1:
        for out, grad in pairs:
            out.register_hook(lambda _, total=grad: total)
    made = iter(torch.autograd.grad([out for out, _ in pairs], wanted, [grad for _, grad in pairs], allow_unused=True))
    return [None if leaf is None else next(made) for leaf in leaves]


def _wider_dtype(dtype: Any) -> Any:
    return RAISED.get(dtype, dtype)


def _widen(tensor: Any) -> Any:
    dtype = _wider_dtype(tensor.dtype)
    return tensor.clone() if dtype is tensor.dtype else tensor.to(dtype)


def _move(tensor: Any, epsilon: float, random: Any, within: bool) -> Any:
    wide = _widen(tensor)
    if not wide.is_floating_point() or not wide.numel():
        return wide
    shift = torch.rand(wide.shape, generator=random, dtype=wide.dtype).mul_(2 * epsilon).add_(1 - epsilon)
    shift.mul_(wide)
    low, high = wide.min(), wide.max()
    return shift.clamp_(low, high) if within and not (low.isnan() or high.isnan()) else shift


def _resolve_name(value: NamedValue, where: Any, dtype_of: Callable[[Any], Any]) -> Any:
    if value.kind == "torch.device":
        return where
    found = _dtype(value.name)
    return dtype_of(found) if isinstance(found, torch.dtype) else found


def _dtype(name: str) -> Any:
    """A dtype, memory format or layout by its name, such as `torch.float16`."""
    plain = name[len("torch.") :] if name.startswith("torch.") else name
    found = getattr(torch, plain, None) if plain.isidentifier() else None
    if not isinstance(found, (torch.dtype, torch.memory_format, torch.layout)):
        raise NotMade(f"{name[:40]!r} is not a type that this version of torch has")
    return found
