"""`MsprobeCallback` for mindspore.train.Model: a monitor, a debugger, or both, in a training without a loop of its
own.

    model.train(epochs, dataset, callbacks=[MsprobeCallback({"dump_path": "./watch"})], dataset_sink_mode=False)
"""

from __future__ import annotations

from typing import Any, Optional

from mindspore._c_expression import TensorPy
from mindspore.train.callback import Callback

from msprobe.collect import notices
from msprobe.mindspore.watch.monitor import Monitor
from msprobe.watch.attached import Attached
from msprobe.watch.settings import Config


class MsprobeCallback(Callback):
    """Runs a monitor (`config`), a debugger (`debugger`: a PrecisionDebugger or a dict of its arguments), or both.

    Which steps: `start`, `every` and `times` of the monitor's config; the step list of the debugger.
    """

    def __init__(self, config: Config = None, debugger: Any = None, on_alarm: Any = None) -> None:
        from msprobe.mindspore import PrecisionDebugger

        super().__init__()
        self._attached = Attached(config, debugger, PrecisionDebugger)
        self._on_alarm = on_alarm

    @property
    def monitor(self) -> Optional[Any]:
        """The monitor while training runs."""
        return self._attached.monitor

    def on_train_begin(self, run_context: Any) -> None:
        given = run_context.original_args()
        if given.get("dataset_sink_mode"):
            notices.warn_once(
                "dataset sinking hides the steps of an epoch from MsprobeCallback: all of them count as one. "
                "Call train(…, dataset_sink_mode=False) to watch them apart."
            )
        attached, step = self._attached, int(given.get("cur_step_num") or 0)
        network, optimizer = given.network or given.train_network, given.get("optimizer")

        def make() -> Monitor:
            return Monitor(network, optimizer, attached.config, start_step=step, on_alarm=self._on_alarm)

        attached.begin(network, step, make)

    def on_train_step_begin(self, run_context: Any) -> None:
        self._attached.step_begins()

    def on_train_step_end(self, run_context: Any) -> None:
        self._attached.run(self._look_for_loss, run_context)
        self._attached.step_ends()

    def _look_for_loss(self, run_context: Any) -> None:
        outputs = run_context.original_args().net_outputs
        while isinstance(outputs, (list, tuple)) and outputs:
            outputs = outputs[0]
        if isinstance(outputs, TensorPy) and outputs.size == 1:
            self._attached.saw_loss(float(outputs.asnumpy().reshape(-1)[0]))

    def on_train_end(self, run_context: Any) -> None:
        self._attached.end()
