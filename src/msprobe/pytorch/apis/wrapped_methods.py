"""Methods of torch.Tensor that the script has wrapped.

Torch does not pass the called method to a mode, but the attribute of `torch.Tensor` with its name. That is the wrapper,
which has already run and would run again. So msprobe calls the method below it instead.
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
    """Each wrapper with the method of torch below it. Warns about wrappers whose method cannot be found."""
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
    """Whether torch has this method in Python, over a C method with other arguments."""
    return f"    def {name}(" in _source()


def _inside(method: Any, name: str) -> Optional[Any]:
    """The functions inside the wrapper: by functools.wraps, or in its closure."""
    candidates = [getattr(method, "__wrapped__", None)]
    for cell in method.__closure__ or ():
        try:
            candidates.append(cell.cell_contents)
        except ValueError:  # the cell is still empty
            continue
    for one in candidates:
        of_torch = isinstance(one, FunctionType) and _is_of_torch(one)
        if getattr(one, "__name__", "") == name and (of_torch or isinstance(one, MethodDescriptorType)):
            return one
    return None


_HOME = str(torch.__file__).rpartition("__init__")[0]
