"""msprobe for MindSpore: `PrecisionDebugger`, `MsprobeStep`, `MsprobeInitStep`, `graph_dump` and `seed_all`; `Monitor`,
`TrainerMon` and `MsprobeCallback` watch a training run.

Importing it changes nothing in MindSpore. The monitor is imported at its first use.
"""

from typing import Any

import mindspore

from msprobe.collect import notices
from msprobe.collect.run.embedding import explain_name
from msprobe.frameworks.versions import MINDSPORE, check_version

check_version(MINDSPORE, mindspore.__version__, notices.warn_once)  # before anything that an old version lacks

from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep  # noqa: E402
from msprobe.mindspore.debugger import PrecisionDebugger  # noqa: E402
from msprobe.mindspore.graph.graph_dump import graph_dump  # noqa: E402
from msprobe.mindspore.seed import seed_all  # noqa: E402

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
