"""The six ways in which free_benchmark changes what a call receives."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import torch

from msprobe.tasks.free_benchmark import NOISE

RAISED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_ON_CPU = {**RAISED, torch.float32: torch.float64, torch.complex64: torch.complex128}
_NOISE = {getattr(torch, name): noise for name, noise in NOISE.items()}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class NotChanged(Exception):
    """This mode has nothing to change in this call."""


def first_float(args: Any, kwargs: Any) -> Optional[Any]:
    """The first floating-point tensor of the arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                return value
        elif isinstance(value, (list, tuple)):
            found = first_float(value, {})
            if found is not None:
                return found
    return None


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments with every tensor and dtype changed."""
    if isinstance(value, (torch.Tensor, torch.dtype, torch.device)):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(member, change) for member in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(member, change) for member in value)
    if isinstance(value, dict):
        return {key: mapped(member, change) for key, member in value.items()}
    return value


def changed(mode: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of the second run. Raises NotChanged where it would be the first run again."""
    if mode == "no_change":
        return args, kwargs
    if mode in ("improve_precision", "to_cpu"):
        return _raise(args, kwargs, _ON_CPU if mode == "to_cpu" else RAISED, mode == "to_cpu")
    target = first_float(args, kwargs)
    if target is None or target.layout is not torch.strided or not target.numel():
        raise NotChanged
    new = _CHANGES[mode](target)

    def swap(value: Any) -> Any:
        return new if value is target else value

    return mapped(args, swap), mapped(kwargs, swap)


def _raise(args: Any, kwargs: Any, table: dict[Any, Any], to_cpu: bool) -> tuple[Any, Any]:
    raised = to_cpu

    def change(value: Any) -> Any:
        nonlocal raised
        if isinstance(value, torch.device):
            return torch.device("cpu") if to_cpu else value
        if isinstance(value, torch.dtype):
            return table.get(value, value)
        wider = table.get(value.dtype)
        if wider is None:
            return value.cpu() if to_cpu else value
        raised = True
        return value.to("cpu", wider) if to_cpu else value.to(wider)

    new = mapped(args, change), mapped(kwargs, change)
    if not raised:
        raise NotChanged
    return new


def _add_noise(tensor: Any) -> Any:
    noise = _NOISE.get(tensor.dtype)
    if noise is None:
        raise NotChanged
    large = tensor.abs() > math.sqrt(noise)
    if not bool(large.any()):
        raise NotChanged
    return tensor + large.to(tensor.dtype).mul_(noise)


def _bit_noise(tensor: Any) -> Any:
    integers = _INTEGERS.get(tensor.element_size())
    if integers is None:
        raise NotChanged
    large = tensor.abs() > torch.finfo(tensor.dtype).smallest_normal
    if not bool(large.any()):
        raise NotChanged
    plain = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
    return (plain.view(integers) ^ large.to(integers).view_as(plain)).view(tensor.dtype)


def _change_value(tensor: Any) -> Any:
    if tensor.numel() < 2:
        raise NotChanged
    new = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = new.view(-1)
    if bool(flat[0] == flat[-1]):
        raise NotChanged
    flat[[0, -1]] = flat[[-1, 0]]
    return new


_CHANGES = {"add_noise": _add_noise, "bit_noise": _bit_noise, "change_value": _change_value}
