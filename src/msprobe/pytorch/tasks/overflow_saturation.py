"""overflow_check on PyTorch: finds values that a cast to a float8 dtype without infinity has limited."""

from __future__ import annotations

from typing import Any, Optional

import torch

from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.tensor_text import TensorTexts

CASTS = frozenset({"Tensor.to", "Tensor.type", "Tensor.copy_"})
"""The APIs that can cast to any dtype."""
LARGEST = {
    getattr(torch, name): torch.finfo(getattr(torch, name)).max
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
}
NAMES = {str(dtype): largest for dtype, largest in LARGEST.items()}
_PLAIN = TensorTexts.tensor_types


def source_of(title: str, args: Any, output: Any) -> Optional[Any]:
    """The tensor before a cast to a dtype of LARGEST; None if the call is no such cast."""
    if type(output) not in _PLAIN or output.dtype not in LARGEST:
        return None
    place = 1 if title == "Tensor.copy_" else 0
    source: Any = args[place] if len(args) > place else None
    if type(source) not in _PLAIN or source.dtype == output.dtype or not source.is_floating_point():
        return None
    return source


def count_saturated(source: Any, output: Any) -> tuple[int, int, float]:
    """How many values were larger than the largest number and are that number now, how many of them were infinite, and
    the largest finite one. The call must not have changed `source`."""
    largest = LARGEST[output.dtype]
    with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
        before = source.detach().abs()
        beyond = before > largest
        if not bool(beyond.any()):
            return 0, 0, 0.0
        after = output.detach().to(torch.float32).abs()
        limited = before.expand_as(after)[beyond.expand_as(after) & (after == largest)]
        finite = limited[torch.isfinite(limited)]
        peak = float(finite.max()) if finite.numel() else 0.0
        return int(limited.numel()), int(limited.numel() - finite.numel()), peak
