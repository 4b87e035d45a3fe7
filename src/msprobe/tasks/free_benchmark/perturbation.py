"""What a second run receives: nested arguments with one tensor, or every tensor, changed.

The framework changes a tensor (`Perturbations`). This file decides which tensors, and when there is nothing to change.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol

NO_CHANGE, IMPROVE, TO_CPU = "no_change", "improve_precision", "to_cpu"
RAISING = (IMPROVE, TO_CPU)
# Noise moves an input by about one spacing of its dtype.
NOISY = ("add_noise", "bit_noise")
NOISE = {"bfloat16": 1e-4, "float16": 1e-6, "float32": 1e-8, "float64": 1e-16}


class NotChanged(Exception):
    """This mode has nothing to change in this call."""


class Perturbations(Protocol):
    """What a framework knows of its own arguments."""

    leaves: tuple[type, ...]
    """Tensors, dtypes and devices."""

    def is_float(self, value: Any) -> bool:
        """Whether it is a floating-point tensor."""

    def raised(self, value: Any, mode: str) -> Any:
        """A leaf in the precision, and the place, of the second run; itself where it stays as it is."""

    def altered(self, tensor: Any, mode: str) -> Any:
        """A copy with noise or swapped elements. Raises NotChanged where that would be the tensor again."""


def mapped(value: Any, leaves: tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Nested arguments with every leaf changed."""
    if isinstance(value, leaves):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(member, leaves, change) for member in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(member, leaves, change) for member in value)
    if isinstance(value, dict):
        return {key: mapped(member, leaves, change) for key, member in value.items()}
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


def changed(mode: str, args: Any, kwargs: Any, ways: Perturbations) -> tuple[Any, Any]:
    """The arguments of the second run. Raises NotChanged where it would be the first run again."""
    if mode == NO_CHANGE:
        return args, kwargs
    if mode in RAISING:
        return _raised(mode, args, kwargs, ways)
    target = first_float(args, kwargs, ways.is_float)
    if target is None:
        raise NotChanged
    new = ways.altered(target, mode)

    def swap(value: Any) -> Any:
        return new if value is target else value

    return mapped(args, ways.leaves, swap), mapped(kwargs, ways.leaves, swap)


def _raised(mode: str, args: Any, kwargs: Any, ways: Perturbations) -> tuple[Any, Any]:
    any_raised = mode == TO_CPU

    def change(value: Any) -> Any:
        nonlocal any_raised
        new = ways.raised(value, mode)
        any_raised = any_raised or (new is not value and ways.is_float(value))
        return new

    new = mapped(args, ways.leaves, change), mapped(kwargs, ways.leaves, change)
    if not any_raised:
        raise NotChanged
    return new
