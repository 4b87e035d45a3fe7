"""`seed_all`: makes runs repeatable. Only the user calls it, or `seed` and `is_deterministic` in config.json."""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.nn import functional

from msprobe.collect import notices
from msprobe.collect.seeding import seed_host


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seeds Python, numpy and torch on every device, turns cuDNN off and fixes its choice of algorithms.

    `mode` also makes torch use deterministic algorithms. `rm_dropout` turns the dropout functions of
    torch.nn.functional into no-ops, and so all modules that call them, old and new. Without `rm_dropout` the model
    keeps its dropout, or gets it back.
    """
    seed_host(seed, mode, rm_dropout)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    npu = getattr(torch, "npu", None)
    if npu is not None:
        npu.manual_seed(seed)
        npu.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.enabled = False
    if mode:
        torch.use_deterministic_algorithms(True)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if rm_dropout:
        _remove_dropout()
    else:
        _restore_dropout()


def _restore_dropout() -> None:
    for name, (original, ours) in _DROPOUT.items():
        if getattr(functional, name) is ours:
            setattr(functional, name, original)


def _remove_dropout() -> None:
    """Replaces the dropout functions: they drop nothing from now on, also in modules that call them, old and new."""
    for name, (original, ours) in _DROPOUT.items():
        found = getattr(functional, name)
        if found is original:
            setattr(functional, name, ours)
        elif found is not ours:
            notices.warn_once(
                f"seed_all: torch.nn.functional.{name} is not torch's own function: it keeps its dropout."
            )


# The functions that replace those of torch.nn.functional. They are typed and have no closure, so that torch.jit
# compiles them. An invalid probability goes to torch, which refuses it.

_dropout = functional.dropout
_dropout1d = functional.dropout1d
_dropout2d = functional.dropout2d
_dropout3d = functional.dropout3d
_alpha_dropout = functional.alpha_dropout
_feature_alpha_dropout = functional.feature_alpha_dropout


def _drop_nothing(p: float) -> float:
    return 0.0 if 0.0 <= p <= 1.0 else p


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout(input, _drop_nothing(p), training, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout1d(input, _drop_nothing(p), training, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout2d(input, _drop_nothing(p), training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropout3d(input, _drop_nothing(p), training, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _alpha_dropout(input, _drop_nothing(p), training, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    return _feature_alpha_dropout(input, _drop_nothing(p), training, inplace)


_DROPOUT = {
    ours.__name__: (getattr(functional, ours.__name__), ours)
    for ours in (dropout, dropout1d, dropout2d, dropout3d, alpha_dropout, feature_alpha_dropout)
}
for _original, _ours in _DROPOUT.values():
    _ours.__module__ = _original.__module__  # a pickle has the name of this place
    _ours.__doc__ = _original.__doc__
