"""Fixing what is random. Called only by the user or by `seed`/`is_deterministic` in config.json."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch

_DROPOUT_FUNCTIONS = ("dropout", "dropout2d", "dropout3d")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seeds Python, numpy and torch on every device.

    `mode` also makes torch use deterministic algorithms. `rm_dropout` makes dropout a no-op, for the functions
    and for modules made before or afterwards; without it the model is left as it is.
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
    for name in _DROPOUT_FUNCTIONS:
        original = getattr(torch.nn.functional, name)
        if not hasattr(original, "msprobe_original"):
            setattr(torch.nn.functional, name, _without_dropout(original))


def _without_dropout(original: Any) -> Any:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    dropout.__name__ = original.__name__
    dropout.__doc__ = original.__doc__
    dropout.msprobe_original = original  # type: ignore[attr-defined]
    return dropout
