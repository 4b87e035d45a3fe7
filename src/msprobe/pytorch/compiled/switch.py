"""Dynamo's switch: the one function through which compiled code begins and ends, and how to give it another backend.

Dynamo keeps compiled code per backend, so code that another backend compiled stays as it is and is used again later.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Optional

Backend = Callable[..., Any]


def eval_frame() -> Any:
    """The module of dynamo that enters compiled code, or None. It is imported here (making an optimizer imports it
    too): a later import, by the first torch.compile of the script, would run inside our mode."""
    try:
        return importlib.import_module("torch._dynamo.eval_frame")
    except ImportError:
        return None


def backend_of(callback: Any) -> Backend:
    """The backend that a compiled function was made with."""
    return eval_frame().innermost_backend(callback)


def with_backend(callback: Any, backend: Backend) -> Any:
    """The callback of a compiled function, with another backend. Dynamo compares backends, so keep the result."""
    convert_frame = importlib.import_module("torch._dynamo.convert_frame")
    converter = callback
    while not hasattr(converter, "_clone_with_backend"):
        converter = converter._torchdynamo_orig_backend
    return convert_frame.catch_errors_wrapper(converter._clone_with_backend(backend), callback.hooks)


def name_backend(backend: Any) -> str:
    """The name by which torch.compile knows a backend; a function of the user has its own name."""
    name = getattr(backend, "compiler_name", None)
    if name is None:
        name = _registered(backend) or getattr(backend, "__name__", type(backend).__name__)
    return str(name)


def is_named(backend: Any) -> bool:
    """Whether torch.compile knows the backend by its name."""
    return hasattr(backend, "compiler_name") or _registered(backend) is not None


def _registered(backend: Any) -> Optional[str]:
    registry = importlib.import_module("torch._dynamo.backends.registry")
    for name, function in getattr(registry, "_COMPILER_FNS", {}).items():
        if function is backend:
            return str(name)
    return None


def name_region(function: Any) -> str:
    """The name of a compiled function, or the class of a compiled module."""
    module = module_of(function)
    if module is not None:
        return type(module).__name__
    return str(getattr(function, "__name__", type(function).__name__))


def module_of(function: Any) -> Any:
    """The module whose call this function is; None for other functions."""
    wrapped = getattr(function, "__wrapped__", None)
    if hasattr(wrapped, "_modules"):  # torch wraps modules of its own, such as Sequential
        return wrapped
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if name in ("_call_impl", "_wrapped_call_impl", "__call__") and hasattr(owner, "_modules"):
        return owner
    return None
