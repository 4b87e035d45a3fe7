"""Comparing two dumps: `compare(target, golden)` names the first call that introduced the difference.

`align` pairs the calls without reading tensors, `measure` measures each pair in one pass, `judge` decides by dtype and
noise, `origin` follows the differences to the first one. None of them needs PyTorch or MindSpore.
"""

from __future__ import annotations

from msprobe.compare.comparison import compare
from msprobe.compare.origin.describe import Origin
from msprobe.compare.result import Comparison, UnitResult
from msprobe.compare.rows import Row

__all__ = ["Comparison", "Origin", "Row", "UnitResult", "compare"]
