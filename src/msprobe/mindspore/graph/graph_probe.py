"""Level L0 and mix where something is compiled: graph mode, and `jit` in a dynamic run.

In graph mode everything is in one directory, as in a dynamic run. In a dynamic run what is inside of compiled Cells
goes to `graph/`, beside `pynative/`; so does what `jit` functions do with the model's Cells.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from msprobe.collect import notices
from msprobe.collect.custom import CustomApis
from msprobe.collect.header import run_facts
from msprobe.collect.lifecycle import Lifecycle, UsageError
from msprobe.collect.recorder import Recorder
from msprobe.collect.selection import Selection
from msprobe.config import Settings
from msprobe.dump import layout
from msprobe.dump.writer import Head, RankWriter, Worker
from msprobe.mindspore import header
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.cells.cell_calls import is_compiled, named_below
from msprobe.mindspore.executor import synchronize
from msprobe.mindspore.gradients.parameter_gradients import ParameterGradients
from msprobe.mindspore.graph.cell_records import NO_CALL, GraphCells
from msprobe.mindspore.graph.taps import TAPS, supported
from msprobe.mindspore.probe import MindSporeProbe, plain_recorder, wanted_statistics
from msprobe.mindspore.tensors.tensor_text import TensorTexts

GRAPH = "graph"
TASKS = ("statistics", "tensor", "structure")
_LATE = (
    "start(model) came too late: the graphs were compiled already, and none of their Cells is seen. Call it before the "
    "model runs for the first time."
)


def _compiles(models: Sequence[Any]) -> bool:
    """Whether Cells of these models are compiled as such, and not only where a `jit` function calls them."""
    return header.in_graph_mode() or any(is_compiled(each.cell) for each in named_below(models))


def _settle() -> None:
    """Everything that was started has run, and was shown, when this returns."""
    synchronize()
    TAPS.drain()


def refuse(settings: Settings) -> None:
    """Raises UsageError for what the configuration allows in graph mode, and level L0 has not."""
    if not supported():
        raise UsageError("level L0 in graph mode is for CPU and Ascend; on this device graph mode has: L2.")
    if isinstance(getattr(settings.section, "summary_mode", ""), tuple):
        raise UsageError('a list as summary_mode is for level L2; at L0 it is "statistics", "md5" or "xor".')


class TappedLifecycle(Lifecycle):
    """start() puts taps into the graphs that are compiled after it.

    Where the model itself is compiled, that is whether the step is wanted or not: a graph is compiled once.
    """

    def start(self, model: Any = None, token_range: Any = None) -> None:
        if not self._collecting and not self._is_foreign():
            TAPS.drain()
        super().start(model, token_range)
        if self._models and self.wants_more and not self._is_foreign() and self._wants_rank():
            self._attach(self._models)

    def stop(self) -> None:
        super().stop()
        if not self._is_foreign() and not (self._models and self.wants_more and _compiles(self._models)):
            TAPS.pause()

    def set_init_step(self, step: int) -> None:
        """MsprobeInitStep knows the number when training begins: start(model) may have opened step 0 by then."""
        writer, probe = self._writer, self._probe
        if writer is not None and isinstance(probe, GraphProbe) and probe.is_empty:
            self.stop()
            self._guarded(probe.close)
            self._probe = self._writer = None
            writer.finish()
            shutil.rmtree(writer.directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # another rank's directory is beside it
                writer.directory.parent.rmdir()
        super().set_init_step(step)

    def _attach(self, models: Sequence[Any]) -> None:
        expected = _compiles(models)
        if supported() and (expected or self._collecting):
            TAPS.attach(named_below(models, inside=True), with_parameters=header.in_graph_mode())
        elif expected:
            notices.warn_once("what runs inside compiled graphs is collected on CPU and Ascend only.")

    def _close_step(self) -> None:
        probe = self._probe
        super()._close_step()
        if isinstance(probe, JitProbe):
            self.account.also(probe.records_in_graphs)

    def close(self) -> None:
        if not self.closed and not self._is_foreign():
            super().close()
            TAPS.release()


class GraphProbe:
    """One step in graph mode."""

    def __init__(self, settings: Settings, writer: RankWriter, selection: Selection) -> None:
        texts = TensorTexts(wanted_statistics(settings), writer)
        self.recorder = plain_recorder(settings, writer, selection, texts)
        self._cells = GraphCells(self.recorder, texts, TAPS.templates)

    @property
    def is_empty(self) -> bool:
        return not self._cells.entered

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None:
        if token_range is not None:
            notices.warn_once("token_range has no effect in graph mode: every forward of the step is collected.")
        TAPS.listener = self._cells
        self._cells.open = True

    def remove(self) -> None:
        _settle()
        self._cells.open = False

    def close(self) -> list[str]:
        _settle()
        self._cells.close()
        TAPS.listener = None
        return [_LATE] if TAPS.late and not self._cells.entered else []

    def save(self, variable: Any, name: str, with_gradient: bool) -> None:
        """Level debug is not in graph mode: nobody calls this."""


class _GraphSide:
    """`graph/` of one step of a dynamic run."""

    def __init__(self, settings: Settings, beside: Path, selection: Selection) -> None:
        self.directory = layout.dump_root(beside) / GRAPH / beside.parent.name / beside.name
        saves = settings.task == "tensor" or bool(getattr(settings.section, "tensor_list", ()))
        data_dir = str(self.directory / layout.TENSORS) if saves else None
        head = Head(settings.task, settings.level, "mindspore", data_dir, settings.extra_info)
        self._worker = Worker(tell=notices.warn)
        self._writer = RankWriter(self.directory, head, self._worker)
        facts = {**run_facts(settings), **header.mindspore_facts()}
        self._writer.run_header(facts)
        texts = TensorTexts(wanted_statistics(settings), self._writer)
        self.recorder: Recorder = plain_recorder(settings, self._writer, selection, texts)
        self.recorder.on_first_batch = lambda batch: self._writer.run_header({**facts, "first_batch": batch})
        self.cells = GraphCells(self.recorder, texts, TAPS.templates)
        self.parameters = ParameterGradients(self.recorder)

    def close(self) -> int:
        """Returns the number of records."""
        self.parameters.remove()
        self.cells.close()
        self.recorder.closed = True
        finished = self._writer.finish()
        self._worker.close()
        if self.recorder.faults:
            notices.warn_once(
                f"{self.recorder.faults} calls in graphs could not be recorded whole; training was not affected. "
                f"The reasons are in {self.directory / layout.ERRORS}."
            )
        return finished.records


class JitProbe(MindSporeProbe):
    """One step of a dynamic run at L0 or mix; its compiled parts, where there are some, go to `graph/`."""

    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        sites: Optional[ApiPatches],
        custom: CustomApis,
    ) -> None:
        super().__init__(settings, writer, selection, sites, custom)
        self._settings = settings
        self._beside = writer.directory
        self._graph: Optional[_GraphSide] = None
        self._making = threading.Lock()
        self._open = False
        self.records_in_graphs = 0

    # What the taps call: `graph/` is made when the first Cell is met in a graph.

    def enter(self, title: str) -> int:
        if not self._open:
            return NO_CALL
        try:
            return self._side().cells.enter(title)
        except Exception:
            self.recorder.fault(title, traceback.format_exc())
            return NO_CALL

    def see(self, number: int, template: Any, slot: int, array: Any) -> None:
        if self._graph is not None:
            self._graph.cells.see(number, template, slot, array)

    def gradient(self, number: int, template: Any, slot: int, array: Any) -> None:
        if self._graph is not None:
            self._graph.cells.gradient(number, template, slot, array)

    def close(self) -> list[str]:
        told = []
        if len(TAPS.templates):
            _settle()
        if self._graph is not None:
            self.records_in_graphs = self._graph.close()
            if TAPS.late and not self._graph.cells.entered:
                told.append(_LATE)
        TAPS.listener = None
        return [*super().close(), *told]

    def _side(self) -> _GraphSide:
        with self._making:  # taps call from the runtime's threads
            if self._graph is None:
                self._graph = _GraphSide(self._settings, self._beside, self.recorder.selection)
                self._graph.cells.open = True
            return self._graph

    def _put_in(self) -> None:
        super()._put_in()
        self._open = True
        TAPS.listener = self
        compiled = [each for each in named_below(self._models) if is_compiled(each.cell)]
        if compiled and self.recorder.selection.backward:
            side = self._side()
            roots = tuple(root.title.rpartition(".")[0] + "." for root in compiled)
            for each in named_below(self._models, inside=True):
                if each.title.startswith(roots):
                    side.parameters.watch(each.title, each.cell._params)
            side.parameters.install()

    def _take_out(self) -> None:
        if len(TAPS.templates):  # graphs with taps: what was started may run later than the script's next line
            _settle()
        self._open = False
        super()._take_out()
