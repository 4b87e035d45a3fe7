"""msprobe for PyTorch: `PrecisionDebugger`, `seed_all`, `check_compiled`, `Monitor`, `TrainerMon`, `MsprobeCallback`.

Importing it changes nothing in torch. The monitor and the check of compiled code are imported at their first use.
"""

from typing import Any

import torch

from msprobe.collect import notices
from msprobe.collect.run.embedding import explain_name
from msprobe.frameworks.versions import PYTORCH, check_version

check_version(PYTORCH, torch.__version__, notices.warn_once)  # before anything that an old version lacks

from msprobe.pytorch.debugger import PrecisionDebugger  # noqa: E402
from msprobe.pytorch.seed import seed_all  # noqa: E402

__all__ = ["Monitor", "MsprobeCallback", "PrecisionDebugger", "TrainerMon", "check_compiled", "seed_all"]
_LATER = {
    "Monitor": "watch.monitor",
    "MsprobeCallback": "watch.callbacks",
    "TrainerMon": "watch.trainer",
    "check_compiled": "compiled.check.call",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise explain_name(__name__, name)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
