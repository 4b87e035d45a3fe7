"""msprobe for PyTorch: `PrecisionDebugger`, `seed_all`, `Monitor`, `TrainerMon` and `MsprobeCallback`.

Importing it changes nothing in torch. What watches is imported when it is first asked for.
"""

from typing import Any

from msprobe.collect.run.embedding import explain_name
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.seed import seed_all

__all__ = ["Monitor", "MsprobeCallback", "PrecisionDebugger", "TrainerMon", "seed_all"]
_WATCH = {"Monitor": "monitor", "MsprobeCallback": "callbacks", "TrainerMon": "trainer"}


def __getattr__(name: str) -> Any:
    if name not in _WATCH:
        raise explain_name(__name__, name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.watch.{_WATCH[name]}"), name)
