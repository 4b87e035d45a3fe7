"""The modules of a model, found in one walk at start(). Everything that installs hooks uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch


class TreeModule(NamedTuple):
    """One module of the models."""

    prefix: str
    """The prefix of the names of its parameters and buffers: `blocks.0.`."""
    title: str
    """The name of its records: `Module.blocks.0.Block`."""
    module: Any
    is_model: bool


class ModelTree:
    """Caches the last walk: everything that one start() installs uses the same."""

    def __init__(self) -> None:
        self._models: Optional[Sequence[Any]] = None
        self._found: Optional[list[TreeModule]] = None

    def plain(self, models: Sequence[Any]) -> Optional[list[TreeModule]]:
        """Every module once, with the first of its paths. None if torch.compile or torch.compiler.disable made one of
        them: names and children then depend on the use."""
        if self._models is not models:
            self._models, self._found = models, _walk(models)
        return self._found

    def forget(self) -> None:
        """The models may have changed."""
        self._models = self._found = None


def is_opaque(module: Any) -> bool:
    """Whether a module is compiled code: it is one record, and nothing below it is hooked."""
    return isinstance(module, torch.jit.ScriptModule) or is_wrapper(module)


def is_wrapper(module: Any) -> bool:
    """Whether `torch.compile(module)` made it."""
    return _is_dynamo_wrapper(module) and not _is_disabled(module)


def uncompiled(module: Any) -> Any:
    """The module that torch.compile(module) or torch.compiler.disable(module) wraps."""
    while _is_dynamo_wrapper(module):
        module = module._orig_mod
    return module


def without_disabling(module: Any) -> Any:
    """The module that torch.compiler.disable(module) wraps: it runs as it is, under its own name."""
    while _is_dynamo_wrapper(module) and _is_disabled(module):
        module = module._orig_mod
    return module


def _is_dynamo_wrapper(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule"


def _is_disabled(module: Any) -> bool:
    return type(module.__dict__.get("dynamo_ctx")).__name__ == "DisableContext"


def is_compiled_in_place(module: Any) -> bool:
    """Whether `module.compile()` was called. Modules below it keep their names: they have parameters, and the script
    may call them."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _walk(models: Sequence[Any]) -> Optional[list[TreeModule]]:
    found: list[TreeModule] = []
    seen: set[int] = set()
    plain_types: set[type] = set()
    for index, model in enumerate(models):
        waiting = [(f"{index}." if len(models) > 1 else "", model)]
        while waiting:
            prefix, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            kind = type(module)
            if kind not in plain_types:
                if is_opaque(module) or _is_dynamo_wrapper(module):
                    return None
                plain_types.add(kind)
            if module._compiled_call_impl is not None:
                return None
            found.append(TreeModule(prefix, f"Module.{prefix}{kind.__name__}", module, module is model))
            children = module._modules
            if children:
                waiting += [
                    (f"{prefix}{name}.", child) for name, child in reversed(children.items()) if child is not None
                ]
    return found
