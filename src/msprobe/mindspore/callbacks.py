"""Callbacks for mindspore.train.Model, which has no training loop in the script."""

from __future__ import annotations

from typing import Any

from mindspore.train.callback import Callback

from msprobe.collect import notices
from msprobe.mindspore.debugger import PrecisionDebugger
from msprobe.mindspore.graph.graph_dump import set_first_iteration


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
    """Sets the first step of a resumed training, in the debugger or in MindSpore's own Dump."""

    def __init__(self) -> None:
        super().__init__()
        self._done = False

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """The first epoch is known only now: `train(…, initial_epoch=2)` leaves the step at 0."""
        if self._done:
            return
        self._done = True
        training = run_context.original_args()
        step = int(training.cur_step_num) or (int(training.cur_epoch_num) - 1) * int(training.batch_num)
        debugger = PrecisionDebugger._current
        if debugger is not None:
            debugger.set_init_step(step)
        elif not set_first_iteration(step):
            notices.warn_once(
                "MsprobeInitStep has no effect: this version of MindSpore cannot set the first step of a resumed "
                "training. Call debugger.set_init_step(n) before the training loop."
            )
