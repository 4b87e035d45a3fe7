"""The parameters of a model that are parts of larger ones, or are treated differently on other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msprobe.pytorch.parallel.layouts import Layouts


def parameter_layouts(models: Sequence[Any], layouts: Layouts) -> dict[str, dict[str, Any]]:
    """The layout of every such parameter, by its name in the model; with several models their number is before it."""
    found = {}
    for name, parameter in _named(models):
        spec = getattr(parameter, "_spec", None)
        if spec is not None:
            found[name] = layouts.describe(spec)
    return found


def _named(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        start = f"{index}." if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            yield f"{start}{name}", parameter
