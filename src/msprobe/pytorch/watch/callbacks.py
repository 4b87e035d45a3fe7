"""`MsprobeCallback`: one callback for Hugging Face's Trainer and Lightning's Trainer.

    trainer = Trainer(model=model, args=args, callbacks=[MsprobeCallback({"dump_path": "./watch"})])

Neither package is imported here. Both call methods of a callback by name. Only `on_train_end` exists in both; a method
that this class does not define does nothing.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from msprobe.pytorch.watch.monitor import Monitor
from msprobe.watch.attached import Attached
from msprobe.watch.settings import Config


class MsprobeCallback:
    """Runs a monitor (`config`), a debugger (`debugger`: a PrecisionDebugger or a dict of its arguments), or both.

    Which steps: `start`, `every` and `times` of the monitor's config; the step list of the debugger.
    """

    def __init__(self, config: Config = None, debugger: Any = None, on_alarm: Any = None) -> None:
        from msprobe.pytorch import PrecisionDebugger

        self._attached = Attached(config, debugger, PrecisionDebugger)
        self._on_alarm = on_alarm
        self._handle: Any = None
        self._steps = 0

    @property
    def monitor(self) -> Optional[Any]:
        """The monitor while training runs."""
        return self._attached.monitor

    def _begin(self, model: Any, optimizers: Any, scaler: Any, step: int) -> None:
        attached = self._attached

        def make() -> Monitor:
            return Monitor(model, optimizers, attached.config, scaler=scaler, start_step=step, on_alarm=self._on_alarm)

        attached.begin(model, step, make)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_") or name in ("setup", "teardown", "load_state_dict"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Hugging Face

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        optimizer = kwargs.get("optimizer")
        self._handle = model.register_forward_hook(self._returned)
        self._begin(model, optimizer, getattr(optimizer, "scaler", None), int(state.global_step))

    def _returned(self, model: Any, args: Any, output: Any) -> None:
        """The Trainer does not pass the loss to callbacks, but a model that gets labels returns it."""
        if not torch.compiler.is_compiling():
            self._attached.run(self._look_for_loss, model, output)

    def _look_for_loss(self, model: Any, output: Any) -> None:
        if model.training:
            self._saw(output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None))

    def _saw(self, loss: Any) -> None:
        if isinstance(loss, torch.Tensor):
            self._attached.saw_loss(loss.detach().mean())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._attached.step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._attached.step_ends()

    # Lightning

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def _generate_state_key(self, **kwargs: Any) -> str:
        return self.state_key

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._steps = int(trainer.global_step)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._begin(module, trainer.optimizers, scaler, self._steps)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._attached.step_begins()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._attached.run(self._saw, outputs.get("loss") if isinstance(outputs, dict) else outputs)
        if int(trainer.global_step) != self._steps:
            self._steps = int(trainer.global_step)
            self._attached.step_ends()

    # Both

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._attached.end()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Ignores an event."""
