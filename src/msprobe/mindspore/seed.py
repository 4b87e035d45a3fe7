"""`seed_all`: makes runs repeatable. Only the user calls it."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import mindspore
from mindspore import mint, nn, ops

from msprobe.collect.seeding import seed_host

# (module, name, the argument for the share to drop, the value that drops nothing)
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

    `mode` also asks for deterministic operators and reductions. `rm_dropout` turns dropout into a no-op: functions at
    once, operators and Cells if they are made later. Without `rm_dropout` the model keeps its dropout, or gets it
    back: functions at once, operators and Cells if they are made later.
    """
    seed_host(seed, mode, rm_dropout)
    mindspore.set_seed(seed)
    if mode and mindspore.get_context("deterministic") != "ON":  # it may be set only once in a process
        mindspore.set_deterministic(True)
    if rm_dropout:
        _remove_dropout()
    else:
        _restore_dropout()


def _restore_dropout() -> None:
    for module, name, _, _ in _CLASSES:
        kind = getattr(module, name, None)
        if kind is not None and hasattr(kind.__init__, "msprobe_original"):
            kind.__init__ = kind.__init__.msprobe_original
    for module, name in _FUNCTIONS:
        function = getattr(module, name, None)
        if function is not None and hasattr(function, "msprobe_original"):
            setattr(module, name, function.msprobe_original)


def _remove_dropout() -> None:
    for module, name, argument, nothing in _CLASSES:
        kind = getattr(module, name, None)
        if kind is not None and not hasattr(kind.__init__, "msprobe_original"):
            kind.__init__ = _replace_init(kind.__init__, argument, nothing)
    for module, name in _FUNCTIONS:
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "msprobe_original"):
            setattr(module, name, _replace_function(function, module, name))


def _replace_init(original: Callable[..., None], argument: str, nothing: float) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        given.pop("self", None)
        if "keep_prob" in given and argument == "p":
            given.pop("keep_prob")  # the older argument of nn.Dropout, which would win over p
        if _is_probability(given.get(argument, nothing)):  # otherwise MindSpore refuses it
            given[argument] = nothing
        original(self, **given)

    init.msprobe_original = original  # type: ignore[attr-defined]
    return init


def _is_probability(value: Any) -> bool:
    return not isinstance(value, (int, float)) or 0 <= value <= 1


def _replace_function(original: Callable[..., Any], module: Any, name: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if _is_probability(given.get("p", 0.5)):
            given["training"] = False
        return original(**given)

    dropout.__module__, dropout.__qualname__ = module.__name__, name  # a pickle names the place
    dropout.msprobe_original = original  # type: ignore[attr-defined]
    return dropout
