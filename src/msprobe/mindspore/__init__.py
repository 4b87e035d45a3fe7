"""msprobe for MindSpore: `PrecisionDebugger`, `MsprobeStep`, `MsprobeInitStep` and `seed_all`.

Importing it changes nothing in MindSpore.
"""

from .callbacks import MsprobeInitStep, MsprobeStep
from .debugger import PrecisionDebugger
from .seed import seed_all

__all__ = ["MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "seed_all"]
