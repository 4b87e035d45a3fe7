"""Methods of torch.Tensor that the script has wrapped.

Torch hands a mode not the method that it was called with but what `torch.Tensor` has under its name: the wrapper,
which has run already and would run again. So the method below is called in its place.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import FunctionType, MethodDescriptorType
from typing import Any, Optional

import torch

from msprobe.collect import notices
from msprobe.pytorch.apis import operator_names


def wrapped_methods() -> dict[Any, Any]:
    """Wrapper: the method of torch below it. Names those where the method below cannot be found."""
    found: dict[Any, Any] = {}
    lost = []
    for name, method in vars(torch.Tensor).items():
        if not isinstance(method, FunctionType) or _is_of_torch(method):
            continue
        below = _inside(method, name)
        if below is None and not _is_python(name):
            below = getattr(torch._C.TensorBase, name, None)
        if below is None:
            lost.append(name)
        else:
            found[method] = below
    if lost:
        notices.warn_once(
            f"the script has wrapped {', '.join(f'torch.Tensor.{name}' for name in sorted(lost))}: between start() and "
            "stop() torch runs such a wrapper twice (it does so under every TorchFunctionMode). Keep the original in "
            "__wrapped__ (functools.wraps) and msprobe calls that instead."
        )
    return found


def _is_of_torch(method: Any) -> bool:
    return str(method.__code__.co_filename).startswith(_HOME) or method.__code__.co_filename == operator_names.__file__


@cache
def _source() -> str:
    return Path(str(torch._tensor.__file__)).read_text(encoding="utf-8")


def _is_python(name: str) -> bool:
    """Whether torch has this method in Python, over one in C that takes other arguments."""
    return f"    def {name}(" in _source()


def _inside(method: Any, name: str) -> Optional[Any]:
    """What the wrapper holds: by functools.wraps, or in its closure."""
    candidates = [getattr(method, "__wrapped__", None)]
    for cell in method.__closure__ or ():
        try:
            candidates.append(cell.cell_contents)
        except ValueError:  # it is still empty
            continue
    for one in candidates:
        of_torch = isinstance(one, FunctionType) and _is_of_torch(one)
        if getattr(one, "__name__", "") == name and (of_torch or isinstance(one, MethodDescriptorType)):
            return one
    return None


_HOME = str(torch.__file__).rpartition("__init__")[0]
