"""Dynamo's switch: the function through which compiled code begins and ends, and how to give it another backend.

Dynamo keeps compiled code per backend, so code that another backend compiled stays as it is and is used again later.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Optional

import torch

from msprobe.pytorch.features import eval_frame, wrapped_callback_name

Backend = Callable[..., Any]


def never_compile(function: Any) -> None:
    """Dynamo does not compile this function of ours when the script's compiled code runs it between two graphs."""
    skip = getattr(eval_frame(), "skip_code", None)
    if skip is not None:
        skip(function.__code__)


def backend_of(callback: Any) -> Backend:
    """The backend that a compiled function was made with."""
    while hasattr(callback, wrapped_callback_name()):
        callback = getattr(callback, wrapped_callback_name())
    return callback


def is_usual(callback: Any) -> bool:
    """Whether dynamo compiles with it as usual. With torch.compiler.set_stance it may use another, which may refuse."""
    return hasattr(callback, "hooks")


def with_backend(callback: Any, backend: Backend) -> Any:
    """The callback of a compiled function, with another backend. Dynamo compares backends, so keep the result."""
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    converter = callback
    while not hasattr(converter, "_clone_with_backend"):
        converter = getattr(converter, wrapped_callback_name())
    return convert_frame.catch_errors_wrapper(converter._clone_with_backend(backend), callback.hooks)


class CompilesUnseen:
    """The callback of a compiled function, which dynamo calls to compile. Our module hooks are removed meanwhile."""

    def __init__(self, callback: Any, modules: Any) -> None:
        setattr(self, wrapped_callback_name(), callback)  # so that dynamo finds the code that this backend has compiled
        if is_usual(callback):
            self.hooks = callback.hooks
        self._callback = callback
        self._modules = modules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._modules.out_of_sight():
            return self._callback(*args, **kwargs)


def name_backend(backend: Any) -> str:
    """The name by which torch.compile knows a backend; a function of the user has its own name."""
    if getattr(backend, "compiler_name", None) == "inductor":
        return "inductor"
    inner = inner_backend(backend)
    return _registered(inner) or str(getattr(inner, "__name__", type(inner).__name__))


def inner_backend(backend: Any) -> Any:
    """The function of a backend, which torch.compile wraps."""
    return getattr(backend, "compiler_fn", backend)


def is_named(backend: Any) -> bool:
    """Whether torch.compile knows the backend by its name."""
    inner = inner_backend(backend)
    return getattr(backend, "compiler_name", None) == "inductor" or _registered(inner) is not None


def _registered(backend: Any) -> Optional[str]:
    registry = importlib.import_module("torch._dynamo.backends.registry")
    for name, function in getattr(registry, "_COMPILER_FNS", {}).items():
        if function is backend:
            return str(name)
    return None


def name_region(function: Any) -> str:
    """The name of a compiled function, or the class of a compiled module."""
    module = function if isinstance(function, torch.nn.Module) else module_of(function)
    if module is not None:
        return type(module).__name__
    return str(getattr(function, "__name__", type(function).__name__))


def module_of(function: Any) -> Any:
    """The module whose call this function is; None for other functions. Torch wraps its own modules, such as
    Sequential, and since 2.14 also their call if they are compiled in place."""
    for one in (function, getattr(function, "__wrapped__", None)):
        if one is not function and hasattr(one, "_modules"):
            return one
        name, owner = getattr(one, "__name__", ""), getattr(one, "__self__", None)
        if name in ("_call_impl", "_wrapped_call_impl", "__call__") and hasattr(owner, "_modules"):
            return owner
    return None
