"""msprobe for MindSpore: `PrecisionDebugger`, `MsprobeStep`, `MsprobeInitStep`, `graph_dump` and `seed_all`.

Importing it changes nothing in MindSpore.
"""

from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep
from msprobe.mindspore.debugger import PrecisionDebugger
from msprobe.mindspore.graph.graph_dump import graph_dump
from msprobe.mindspore.seed import seed_all

__all__ = ["MsprobeInitStep", "MsprobeStep", "PrecisionDebugger", "graph_dump", "seed_all"]
