"""The vLLM plugin (entry point `vllm.general_plugins`): collects every step of an engine, with its tokens.

vLLM loads it in every process. It does nothing unless MSPROBE_ROLLOUT names a config.json, or MSPROBE_ROLLOUT_WEIGHTS
a directory. No file and no class of vLLM's models is changed: the runner of each worker gets two wrapped methods.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any, Optional

CONFIG, WEIGHTS = "MSPROBE_ROLLOUT", "MSPROBE_ROLLOUT_WEIGHTS"
_MARK = "_msprobe_wrapped"


def register() -> None:
    """Called by vLLM in every process. Idle unless one of the two variables is set."""
    config, weights = os.environ.get(CONFIG), os.environ.get(WEIGHTS)
    if not config and not weights:
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def init_device(self: Any) -> Any:
        result = original(self)
        try:
            runner = getattr(self.worker, "model_runner", None)
            if runner is not None:
                attach(runner, config, weights)
        except Exception:
            print(f"[msprobe] ERROR: nothing is collected from vLLM:\n{traceback.format_exc()}", file=sys.stderr)
        return result

    setattr(init_device, _MARK, True)
    WorkerWrapperBase.init_device = init_device


def attach(runner: Any, config: Optional[str], weights: Optional[str]) -> None:
    """Makes the runner of a worker collect its steps and record its weights."""
    if weights:
        from msprobe.pytorch.rollout.engine_weights import record_at_load

        record_at_load(weights)
    if config:
        from msprobe.pytorch.rollout.vllm_steps import EngineSteps

        EngineSteps(runner, config).attach()
