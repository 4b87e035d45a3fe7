"""msprobe for MindSpore: `PrecisionDebugger`, `MsprobeStep`, `MsprobeInitStep`, `graph_dump` and `seed_all`.

Importing it changes nothing in MindSpore.
"""

from .callbacks import MsprobeInitStep, MsprobeStep
from .debugger import PrecisionDebugger
from .graph_dump import graph_dump
from .seed import seed_all

__all__ = ["MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "graph_dump", "seed_all"]
