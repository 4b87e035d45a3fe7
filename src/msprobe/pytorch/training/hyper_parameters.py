"""The hyper-parameters of an optimizer as plain values, and the numbers that training code holds in tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import torch

from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.system.interrupts import let_through

_LISTS = ("params", "param_names")
_LENGTH = 64


def number(value: Any) -> Optional[float]:
    """The value of a number, or of a tensor with one number; None if it cannot be read here."""
    if type(value) in (float, int):
        return float(value)
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
            value = getattr(value, "_local_tensor", value)
            found = value.item() if isinstance(value, torch.Tensor) else value
        return None if isinstance(found, complex) else float(found)
    except Exception as error:  # a meta tensor, a graph that is being captured
        let_through(error)
        return None


def plain_value(value: Any) -> Any:
    """The value of a hyper-parameter in a form that JSON can have."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, torch.Tensor)):
        return number(value)
    if isinstance(value, (list, tuple)) and len(value) <= _LENGTH:
        return [plain_value(one) for one in value]
    return type(value).__qualname__


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Every parameter group: its hyper-parameters, the number of its parameters and elements, and of gradients."""
    groups = []
    for group in optimizer.param_groups:
        found = {str(name): plain_value(value) for name, value in group.items() if name not in _LISTS}
        parameters = list(group["params"])
        found["parameters"] = len(parameters)
        found["elements"] = sum(parameter.numel() for parameter in parameters)
        found["gradients"] = sum(parameter.grad is not None for parameter in parameters)
        groups.append(found)
    return groups


def names_in(optimizer: Any, names: Mapping[int, str]) -> list[list[Optional[str]]]:
    """The names of the parameters in each group: those in the model, otherwise those given to the optimizer."""
    found = []
    for group in optimizer.param_groups:
        given = group.get("param_names") or [None] * len(group["params"])
        found.append([names.get(id(one), name) for one, name in zip(group["params"], given)])
    return found


def steps_done(optimizer: Any) -> Optional[float]:
    """The number of steps that the optimizer has made before, if its state has it."""
    for state in getattr(optimizer, "state", {}).values():
        return number(state["step"]) if isinstance(state, Mapping) and "step" in state else None
    return 0.0
