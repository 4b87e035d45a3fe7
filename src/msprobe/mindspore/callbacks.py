"""Callbacks for mindspore.train.Model: the steps of a training that nobody writes a loop for."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore.train.callback import Callback

from msprobe.collect import notices
from msprobe.mindspore.debugger import PrecisionDebugger


class MsprobeStep(Callback):
    """Calls start() when a step begins, stop() and step() when it ends.

    The model is the one that was given to `debugger.start(model)` before training, if any.
    """

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self._debugger = debugger

    def on_train_begin(self, run_context: Any) -> None:
        if run_context.original_args().get("dataset_sink_mode"):
            notices.warn_once(
                "dataset sinking hides the steps of an epoch from MsprobeStep: all of them count as one. "
                "Call train(…, dataset_sink_mode=False) to collect them apart."
            )

    def on_train_step_begin(self, run_context: Any) -> None:
        self._debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class MsprobeInitStep(Callback):
    """Tells the debugger, and MindSpore's Dump, at which step a resumed training begins (graph mode, O0/O1)."""

    def on_train_begin(self, run_context: Any) -> None:
        step = int(run_context.original_args().cur_step_num)
        debugger = PrecisionDebugger._current
        if debugger is not None and debugger._lifecycle.settings.level == "L0":
            debugger.set_init_step(step)
            return
        tell = getattr(mindspore._c_expression, "_set_init_iter", None)
        if tell is None:
            notices.warn_once(
                "this MindSpore has no entry for the initial step of a resumed training: MsprobeInitStep does nothing. "
                "Use debugger.set_init_step(n) before the training loop."
            )
            return
        tell(step)
