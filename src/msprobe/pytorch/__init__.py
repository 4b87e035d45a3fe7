"""msprobe for PyTorch: `PrecisionDebugger` and `seed_all`. Importing it changes nothing in torch."""

from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.seed import seed_all

__all__ = ["PrecisionDebugger", "seed_all"]
