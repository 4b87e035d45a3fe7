"""Fixing what is random. Called only by the user or by `seed`/`is_deterministic` in config.json."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from msprobe.collect import notices


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seeds Python, numpy and torch on every device.

    `mode` also makes torch use deterministic algorithms. `rm_dropout` makes the dropout functions of
    torch.nn.functional no-ops, and so the modules that call them, made before or afterwards; without it the model is
    left as it is.
    """
    for name, value, kind in (("seed", seed, int), ("mode", mode, bool), ("rm_dropout", rm_dropout, bool)):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"seed_all: {name} takes {kind.__name__}, not {value!r}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed_all: seed takes 0 to 2**32 - 1 (numpy's range), not {seed}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    npu = getattr(torch, "npu", None)
    if npu is not None:
        npu.manual_seed(seed)
        npu.manual_seed_all(seed)
    if mode:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.enabled = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ["HCCL_DETERMINISTIC"] = "true"
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    """p becomes 0 in the functions; the modules call them, whenever they were made."""
    for name, (original, ours) in _DROPOUT.items():
        found = getattr(functional, name)
        if found is original:
            setattr(functional, name, ours)
        elif found is not ours:
            notices.warn_once(f"seed_all: torch.nn.functional.{name} is not torch's own, and is left as it is.")


# What stands in torch.nn.functional afterwards: typed functions of a module, without a closure, so that torch.jit
# compiles them. A probability that is none is handed on, and refused as ever.

_dropout = functional.dropout
_dropout1d = functional.dropout1d
_dropout2d = functional.dropout2d
_dropout3d = functional.dropout3d
_alpha_dropout = functional.alpha_dropout
_feature_alpha_dropout = functional.feature_alpha_dropout


def _none(p: float) -> float:
    return 0.0 if 0.0 <= p <= 1.0 else p


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout(input, _none(p), training, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout1d(input, _none(p), training, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout2d(input, _none(p), training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout3d(input, _none(p), training, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha_dropout(input, _none(p), training, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _feature_alpha_dropout(input, _none(p), training, inplace)


_DROPOUT = {
    ours.__name__: (getattr(functional, ours.__name__), ours)
    for ours in (dropout, dropout1d, dropout2d, dropout3d, alpha_dropout, feature_alpha_dropout)
}
for _original, _ours in _DROPOUT.values():
    _ours.__module__ = _original.__module__  # where it is found from then on, which is what a pickle says
    _ours.__doc__ = _original.__doc__
