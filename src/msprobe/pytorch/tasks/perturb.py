"""The six ways in which free_benchmark changes what a call receives, for tensors of PyTorch."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from msprobe.tasks.free_benchmark import perturbation
from msprobe.tasks.free_benchmark.perturbation import CHANGE_VALUE, NOISE, TO_CPU, NotChanged

RAISED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_ON_CPU = {**RAISED, torch.float32: torch.float64, torch.complex64: torch.complex128}
_NOISE = {getattr(torch, name): noise for name, noise in NOISE.items()}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchPerturbations:
    leaves: tuple[type, ...] = (torch.Tensor, torch.dtype, torch.device)

    def is_float(self, value: Any) -> bool:
        """A nested tensor has no shape that a second run could be compared by."""
        return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_nested

    def raise_precision(self, value: Any, mode: str) -> Any:
        to_cpu = mode == TO_CPU
        table = _ON_CPU if to_cpu else RAISED
        if isinstance(value, torch.device):
            return torch.device("cpu") if to_cpu else value
        if isinstance(value, torch.dtype):
            return table.get(value, value)
        wider = table.get(value.dtype)
        if wider is None:
            return value.cpu() if to_cpu else value
        return value.to("cpu", wider) if to_cpu else value.to(wider)

    def alter(self, tensor: Any, mode: str) -> Any:
        if tensor.layout is not torch.strided or not tensor.numel():
            raise NotChanged
        new = _CHANGES[mode](tensor.detach())
        if tensor.requires_grad and torch.is_grad_enabled():  # fix: the second result stays in the graph
            return _Altered.apply(tensor, new, mode == CHANGE_VALUE)
        return new


class _Altered(torch.autograd.Function):
    """Replaces the values of a tensor by altered ones; the gradient goes to the elements that they come from."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, new: Any, swapped: bool) -> Any:
        ctx.swapped = swapped
        return new

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        return (_swap_ends(gradient) if ctx.swapped else gradient), None, None


PERTURBATIONS = TorchPerturbations()


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    return perturbation.map_leaves(value, PERTURBATIONS.leaves, change)


def change_arguments(mode: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return perturbation.change_arguments(mode, args, kwargs, PERTURBATIONS)


def _add_noise(tensor: Any) -> Any:
    noise = _NOISE.get(tensor.dtype)
    if noise is None:
        raise NotChanged
    large = tensor.abs() > math.sqrt(noise)
    if not bool(large.any()):
        raise NotChanged
    new = tensor + large.to(tensor.dtype).mul_(noise)
    if torch.equal(new, tensor):  # the noise is less than half the spacing of these values
        raise NotChanged
    return new


def _bit_noise(tensor: Any) -> Any:
    integers = _INTEGERS.get(tensor.element_size())
    if integers is None:
        raise NotChanged
    magnitude = tensor.abs()
    # Not infinities: changing their lowest bit makes them NaN.
    large = (magnitude > torch.finfo(tensor.dtype).smallest_normal) & (magnitude < math.inf)
    if not bool(large.any()):
        raise NotChanged
    plain = tensor.contiguous()
    return (plain.view(integers) ^ large.to(integers).view_as(plain)).view(tensor.dtype)


def _change_value(tensor: Any) -> Any:
    if tensor.numel() < 2:
        raise NotChanged
    flat = tensor.reshape(-1)
    if bool(flat[0] == flat[-1]):
        raise NotChanged
    return _swap_ends(tensor)


def _swap_ends(tensor: Any) -> Any:
    new = tensor.clone(memory_format=torch.contiguous_format)
    flat = new.view(-1)
    flat[[0, -1]] = flat[[-1, 0]]
    return new


_CHANGES = {"add_noise": _add_noise, "bit_noise": _bit_noise, CHANGE_VALUE: _change_value}
