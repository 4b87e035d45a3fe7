"""The lifecycle of levels L0 and mix, where Cells may run compiled: in graph mode, and under `jit` in a dynamic run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import Lifecycle
from msprobe.mindspore import header
from msprobe.mindspore.cells.cell_calls import is_compiled, named_below
from msprobe.mindspore.graph.graph_hooks import GraphHooks
from msprobe.mindspore.graph.taps import TAPS, supported


def _compiles(models: Sequence[Any]) -> bool:
    """Whether Cells of these models are compiled themselves, and not only where a `jit` function calls them."""
    return header.in_graph_mode() or any(is_compiled(each.cell) for each in named_below(models))


class TappedLifecycle(Lifecycle):
    """start() puts taps into the graphs that are compiled after it.

    Where the model itself is compiled, it does so even if the step is not wanted: a graph is compiled once.
    """

    def start(self, model: Any = None, token_range: Any = None) -> None:
        if not self._collecting and not self._is_forked_child():
            TAPS.drain()
        super().start(model, token_range)
        if self._models and self.wants_more and not self._is_forked_child() and self._wants_rank():
            self._attach(self._models)

    def stop(self) -> None:
        super().stop()
        if not self._is_forked_child() and not (self._models and self.wants_more and _compiles(self._models)):
            TAPS.pause()

    def set_init_step(self, step: int) -> None:
        """MsprobeInitStep knows the number when training begins: start(model) may have opened step 0 by then."""
        probe = self._probe
        if probe is not None and isinstance(probe.hooks, GraphHooks) and probe.hooks.is_empty:
            self.stop()
            self._discard_step()
        super().set_init_step(step)

    def _attach(self, models: Sequence[Any]) -> None:
        expected = _compiles(models)
        if supported() and (expected or self._collecting):
            TAPS.attach(named_below(models, inside=True), with_parameters=header.in_graph_mode())
        elif expected:
            notices.warn_once("what runs inside compiled graphs is collected on CPU and Ascend only.")

    def close(self) -> None:
        if not self.closed and not self._is_forked_child():
            super().close()
            TAPS.release()
