"""Fixing what is random. Called only by the user."""

from __future__ import annotations

import functools
import inspect
import os
import random
from typing import Any, Callable

import mindspore
import numpy as np
from mindspore import mint, nn, ops

# (where it lives, its name, the argument that says how much is dropped, the value with which nothing is)
_CLASSES = (
    (ops, "Dropout", "keep_prob", 1.0),
    (ops, "Dropout2D", "keep_prob", 1.0),
    (ops, "Dropout3D", "keep_prob", 1.0),
    (nn, "Dropout", "p", 0.0),
    (nn, "Dropout1d", "p", 0.0),
    (nn, "Dropout2d", "p", 0.0),
    (nn, "Dropout3d", "p", 0.0),
    (mint.nn, "Dropout", "p", 0.0),
    (mint.nn, "Dropout2d", "p", 0.0),
)
_FUNCTIONS = (
    (ops, "dropout"),
    (ops, "dropout1d"),
    (ops, "dropout2d"),
    (ops, "dropout3d"),
    (mint.nn.functional, "dropout"),
    (mint.nn.functional, "dropout2d"),
)


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seeds Python, numpy and MindSpore.

    `mode` also asks for deterministic operators and reductions. `rm_dropout` makes dropout a no-op: the functions
    from now on, the operators and Cells that are made from now on; without it the model is left as it is.
    """
    for name, value, kind in (("seed", seed, int), ("mode", mode, bool), ("rm_dropout", rm_dropout, bool)):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"seed_all: {name} takes {kind.__name__}, not {value!r}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed_all: seed takes 0 to 2**32 - 1 (numpy's range), not {seed}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    mindspore.set_seed(seed)
    if mode:
        if mindspore.get_context("deterministic") != "ON":  # it may be set only once in a process
            mindspore.set_deterministic(True)
        os.environ["HCCL_DETERMINISTIC"] = "true"
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    for module, name, argument, nothing in _CLASSES:
        kind = getattr(module, name, None)
        if kind is not None and not hasattr(kind.__init__, "msprobe_original"):
            kind.__init__ = _made_without(kind.__init__, argument, nothing)
    for module, name in _FUNCTIONS:
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "msprobe_original"):
            setattr(module, name, _without_dropout(function, module, name))


def _made_without(original: Callable[..., None], argument: str, nothing: float) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        given.pop("self", None)
        if "keep_prob" in given and argument == "p":
            given.pop("keep_prob")  # nn.Dropout's older argument, which would win over p
        if _is_probability(given.get(argument, nothing)):  # else it is refused as ever
            given[argument] = nothing
        original(self, **given)

    made.msprobe_original = original  # type: ignore[attr-defined]
    return made


def _is_probability(value: Any) -> bool:
    return not isinstance(value, (int, float)) or 0 <= value <= 1


def _without_dropout(original: Callable[..., Any], module: Any, name: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if _is_probability(given.get("p", 0.5)):
            given["training"] = False
        return original(**given)

    dropout.__module__, dropout.__qualname__ = module.__name__, name  # where it is found, which is what a pickle says
    dropout.msprobe_original = original  # type: ignore[attr-defined]
    return dropout
