"""Callbacks for mindspore.train.Model, which has no training loop in the script."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore.train.callback import Callback

from msprobe.collect import notices
from msprobe.mindspore.debugger import PrecisionDebugger


class MsprobeStep(Callback):
    """Calls start() at the beginning of a step, stop() and step() at its end.

    For levels that need the model, call `debugger.start(model)` once before training.
    """

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self._debugger = debugger

    def on_train_begin(self, run_context: Any) -> None:
        if run_context.original_args().get("dataset_sink_mode"):
            notices.warn_once(
                "with dataset sinking, MsprobeStep sees one step per epoch. "
                "Call train(…, dataset_sink_mode=False) to collect single steps."
            )

    def on_train_step_begin(self, run_context: Any) -> None:
        self._debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class MsprobeInitStep(Callback):
    """Passes the first step of a resumed training to the debugger and to MindSpore's Dump (graph mode, O0/O1)."""

    def on_train_begin(self, run_context: Any) -> None:
        step = int(run_context.original_args().cur_step_num)
        debugger = PrecisionDebugger._current
        if debugger is not None and debugger._lifecycle.settings.level == "L0":
            debugger.set_init_step(step)
            return
        set_first_iteration = getattr(mindspore._c_expression, "_set_init_iter", None)
        if set_first_iteration is None:
            notices.warn_once(
                "MsprobeInitStep has no effect: this version of MindSpore cannot set the first step of a resumed "
                "training. Call debugger.set_init_step(n) before the training loop."
            )
            return
        set_first_iteration(step)
