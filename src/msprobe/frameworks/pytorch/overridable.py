"""Which functions of this torch version reach a TorchFunctionMode, and what is known about them before a call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, GetSetDescriptorType
from typing import Any, Callable

import torch

from msprobe.frameworks.pytorch.operators import ARRIVES_AS

# Python functions that reach the mode and compute nothing.
_PLAIN_NAMES = """
__array__ __array_wrap__ __contains__ __deepcopy__ __dir__ __dlpack__ __dlpack_device__ __format__ __hash__
__iter__ __len__ __reduce_ex__ __repr__ __setstate__ backward dim_order is_shared module_load refine_names
register_hook register_post_accumulate_grad_hook rename rename_ share_memory_ storage storage_type sym_float
sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt untyped_storage
_clear_non_serializable_cached_data
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())
# After these, values may change without the version counter: they give access to memory, or exchange it.
_UNTRACKED_METHODS = ("numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "data_ptr", "set_")


def dispatches(func: Callable[..., Any]) -> bool:
    """Whether a function of torch.distributed passes itself to modes: not all do, in old versions none."""
    code = getattr(inspect.unwrap(func), "__code__", None)
    return code is not None and "handle_torch_function" in code.co_names


def _properties() -> Iterator[Any]:
    """`x.shape` arrives as `Tensor.shape.__get__`, often."""
    for owner in torch.Tensor.__mro__[:2]:
        for attribute in vars(owner).values():
            if isinstance(attribute, (GetSetDescriptorType, property)):
                yield attribute


def builtin_functions() -> Iterator[Callable[..., Any]]:
    """Everything that may reach the mode and has no Python code, except methods that may stand for an operator."""
    for attribute in _properties():
        yield attribute.__get__
        yield attribute.__set__
    spelled = {getattr(torch.Tensor, method) for method in ARRIVES_AS.values()}
    for functions in torch.overrides.get_overridable_functions().values():
        for func in functions:
            if not isinstance(func, FunctionType) and func not in spelled:
                yield func


def python_functions() -> Iterator[FunctionType]:
    for functions in torch.overrides.get_overridable_functions().values():
        for func in functions:
            if isinstance(func, FunctionType) and func.__name__ not in _PLAIN:
                yield func
    for func in vars(torch.nn.init).values():
        if isinstance(func, FunctionType) and "handle_torch_function" in func.__code__.co_names:
            yield func


def untracked_functions() -> Iterator[Callable[..., Any]]:
    for method in _UNTRACKED_METHODS:
        yield getattr(torch.Tensor, method)
    yield torch.Tensor.data.__get__
    yield torch.Tensor.data.__set__
    for name in dir(torch):
        if name.startswith("_fused_"):
            yield getattr(torch, name)
    if torch.distributed.is_available():
        for func in vars(torch.distributed).values():
            if type(func) is FunctionType and dispatches(func):  # isinstance would query deprecated objects
                yield func
