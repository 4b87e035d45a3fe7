"""Makes the input of a second run: nested arguments with one tensor, or every tensor, changed.

The framework changes a tensor (`Perturbations`). This file decides which tensors, and when there is nothing to change.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional, Protocol

NO_CHANGE, IMPROVE, TO_CPU = "no_change", "improve_precision", "to_cpu"
CHANGE_VALUE, ADD_NOISE = "change_value", "add_noise"
RAISING = (IMPROVE, TO_CPU)
# Noise moves an input by about one spacing of its dtype.
NOISY = (ADD_NOISE, "bit_noise")
NOISE = {"bfloat16": 1e-4, "float16": 1e-6, "float32": 1e-8, "float64": 1e-16}


class NotChanged(Exception):
    """This mode has nothing to change in this call."""


class Perturbations(Protocol):
    """How a framework changes its tensors."""

    leaves: tuple[type, ...]
    """Tensors, dtypes and devices."""

    def is_float(self, value: Any) -> bool:
        """Whether it is a floating-point tensor."""

    def raise_precision(self, value: Any, mode: str) -> Any:
        """A leaf in the precision, and on the device, of the second run; the leaf itself if it does not change."""

    def alter(self, tensor: Any, mode: str) -> Any:
        """A copy with noise or swapped elements. Raises NotChanged if it would equal the tensor."""


def map_leaves(value: Any, leaves: tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Nested arguments with every leaf changed."""
    if isinstance(value, leaves):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(member, leaves, change) for member in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(member, leaves, change) for member in value)
    if type(value) is dict:
        return {key: map_leaves(member, leaves, change) for key, member in value.items()}
    if isinstance(value, dict):  # of a class of its own, such as the outputs of transformers
        new = copy.copy(value)
        for key, member in value.items():
            new[key] = map_leaves(member, leaves, change)
        return new
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        new = copy.copy(value)
        for name in value.__dataclass_fields__:
            if hasattr(value, name):
                object.__setattr__(new, name, map_leaves(getattr(value, name), leaves, change))
        return new
    return value


def first_float(args: Any, kwargs: Any, is_float: Callable[[Any], bool]) -> Optional[Any]:
    """The first floating-point tensor of the arguments."""
    for value in (*args, *kwargs.values()):
        if is_float(value):
            return value
        if isinstance(value, (list, tuple)):
            found = first_float(value, {}, is_float)
            if found is not None:
                return found
    return None


def change_arguments(mode: str, args: Any, kwargs: Any, perturbations: Perturbations) -> tuple[Any, Any]:
    """The arguments of the second run. Raises NotChanged if they would equal those of the first."""
    if mode == NO_CHANGE:
        return args, kwargs
    if mode in RAISING:
        return _raise_all(mode, args, kwargs, perturbations)
    target = first_float(args, kwargs, perturbations.is_float)
    if target is None:
        raise NotChanged
    new = perturbations.alter(target, mode)

    def swap(value: Any) -> Any:
        return new if value is target else value

    return map_leaves(args, perturbations.leaves, swap), map_leaves(kwargs, perturbations.leaves, swap)


def _raise_all(mode: str, args: Any, kwargs: Any, perturbations: Perturbations) -> tuple[Any, Any]:
    any_raised = mode == TO_CPU

    def change(value: Any) -> Any:
        nonlocal any_raised
        new = perturbations.raise_precision(value, mode)
        any_raised = any_raised or (new is not value and perturbations.is_float(value))
        return new

    new = map_leaves(args, perturbations.leaves, change), map_leaves(kwargs, perturbations.leaves, change)
    if not any_raised:
        raise NotChanged
    return new
