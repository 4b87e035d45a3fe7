"""Comparing two dumps: `compare(target, golden)` names the first call that introduced the difference.

Planned without tensors (`align`), measured in one pass (`measure`, `tensors`), judged by dtype and noise (`judge`),
traced to its origin (`trace`, `origin`). Needs neither PyTorch nor MindSpore.
"""

from __future__ import annotations

from msprobe.compare.comparison import compare
from msprobe.compare.origin.describe import Origin
from msprobe.compare.result import Comparison, UnitResult
from msprobe.compare.rows import Row

__all__ = ["Comparison", "Origin", "Row", "UnitResult", "compare"]
