"""msprobe for PyTorch: `PrecisionDebugger` and `seed_all`. Importing it changes nothing in torch."""

from .debugger import PrecisionDebugger
from .seed import seed_all

__all__ = ["PrecisionDebugger", "seed_all"]
