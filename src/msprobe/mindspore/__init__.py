"""msprobe for MindSpore: `PrecisionDebugger`, `MsprobeStep`, `MsprobeInitStep`, `graph_dump` and `seed_all`; `Monitor`,
`TrainerMon` and `MsprobeCallback` watch a training run.

Importing it changes nothing in MindSpore. The monitor is imported at its first use.
"""

from typing import Any

from msprobe.collect.run.embedding import explain_name
from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep
from msprobe.mindspore.debugger import PrecisionDebugger
from msprobe.mindspore.graph.graph_dump import graph_dump
from msprobe.mindspore.seed import seed_all

__all__ = [
    "Monitor",
    "MsprobeCallback",
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionDebugger",
    "TrainerMon",
    "graph_dump",
    "seed_all",
]
_WATCH = {"Monitor": "monitor", "MsprobeCallback": "callbacks", "TrainerMon": "trainer"}


def __getattr__(name: str) -> Any:
    if name not in _WATCH:
        raise explain_name(__name__, name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.watch.{_WATCH[name]}"), name)
