"""Cells in compiled graphs at levels L0 and mix: in graph mode, and under `jit` in a dynamic run.

In graph mode all records are in one directory, as in a dynamic run. In a dynamic run, records of what is inside
compiled Cells go to `graph/`, next to `pynative/`; so do records of the Cells that a `jit` function calls.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect import notices
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.run.header import run_facts
from msprobe.collect.run.lifecycle import UsageError
from msprobe.collect.run.run_summary import log_faults
from msprobe.collect.step_context import StepContext
from msprobe.config import Settings
from msprobe.dump import layout
from msprobe.dump.writing.writer import RankWriter, Worker
from msprobe.mindspore import header
from msprobe.mindspore.cells.cell_calls import is_compiled, named_below, titles_above
from msprobe.mindspore.executor import synchronize
from msprobe.mindspore.gradients.parameter_gradients import ParameterGradients
from msprobe.mindspore.graph.cell_records import NO_CALL, GraphCells
from msprobe.mindspore.graph.taps import TAPS, supported
from msprobe.mindspore.step_hooks import MindSporeHooks, TaskHooks, digest_texts, plain_recorder
from msprobe.mindspore.tensors.tensor_text import TensorTexts

GRAPH = "graph"
_LATE = (
    "start(model) came too late: the graphs were compiled already, and none of their Cells is seen. Call it before the "
    "model runs for the first time."
)


def refuse(settings: Settings) -> None:
    """Raises UsageError for what the configuration allows in graph mode, and level L0 does not have."""
    if not supported():
        raise UsageError("level L0 in graph mode is only for CPU and Ascend; use level L2 on this device.")
    if isinstance(getattr(settings.section, "summary_mode", ""), tuple):
        raise UsageError('a list as summary_mode is only for level L2; at L0 use "statistics", "md5" or "xor".')


def recording_hooks(context: StepContext) -> TaskHooks:
    """The hooks of a dynamic run that records every call, also those inside compiled Cells where it hooks Cells."""
    if not context.level.modules:
        return TaskHooks()
    return TaskHooks(companions=lambda hooks: [CompiledCells(context, hooks)])


def _settle() -> None:
    """Waits until everything that was started has run, and its taps have been read."""
    synchronize()
    TAPS.drain()


class GraphHooks:
    """One step in graph mode."""

    gradients = variables = forward_hooks = None
    records_elsewhere = 0
    watchers: Sequence[Companion] = ()

    def __init__(self, context: StepContext) -> None:
        texts = TensorTexts(context.task.statistics, context.writer)
        self.recorder: Recorder = plain_recorder(context, texts)
        self._cells = GraphCells(self.recorder, texts, TAPS.templates)

    @property
    def is_empty(self) -> bool:
        return not self._cells.entered

    def install(self, models: Sequence[Any]) -> None:
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


class _GraphDirectory:
    """`graph/` of one step of a dynamic run."""

    def __init__(self, context: StepContext) -> None:
        beside = context.writer.directory
        self.directory = layout.dump_root(beside) / GRAPH / beside.parent.name / beside.name
        self._worker = Worker(log=notices.warn)
        self._writer = RankWriter(self.directory, context.task.make_head("mindspore", self.directory), self._worker)
        facts = {**run_facts(context.settings), **header.mindspore_facts()}
        self._writer.run_header(facts)
        texts = TensorTexts(context.task.statistics, self._writer)
        self.recorder = context.make_recorder(texts, digest_texts(), self._writer)
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
            log_faults(self.recorder.faults, "in graphs", self.directory)
        return finished.records


class CompiledCells(Companion):
    """What runs inside compiled Cells in one step of a dynamic run. The taps call `enter`, `see` and `gradient`."""

    def __init__(self, context: StepContext, hooks: MindSporeHooks) -> None:
        self._context = context
        self._hooks = hooks
        self._graph: Optional[_GraphDirectory] = None
        self._making = threading.Lock()
        self._open = False

    def enter(self, title: str) -> int:
        if not self._open:
            return NO_CALL
        try:
            return self._directory().cells.enter(title)
        except Exception:
            self._hooks.recorder.fault(title, traceback.format_exc())
            return NO_CALL

    def see(self, number: int, template: Any, slot: int, array: Any) -> None:
        if self._graph is not None:
            self._graph.cells.see(number, template, slot, array)

    def gradient(self, number: int, template: Any, slot: int, array: Any) -> None:
        if self._graph is not None:
            self._graph.cells.gradient(number, template, slot, array)

    def install(self, models: Sequence[Any]) -> None:
        self._open = True
        TAPS.listener = self
        compiled = [each for each in named_below(models) if is_compiled(each.cell)]
        if compiled and self._context.selection.backward:
            parameters = self._directory().parameters
            roots = tuple(root.title.rpartition(".")[0] + "." for root in compiled)
            every = list(named_below(models, inside=True))
            titles = [each.title for each in every]
            for each in every:
                if each.title.startswith(roots):
                    parameters.watch(each.title, each.cell._params, titles_above(each.title, titles))
            parameters.install()

    def remove(self) -> None:
        if len(TAPS.templates):  # graphs with taps: what was started may run later than the script's next line
            _settle()
        self._open = False

    def close(self) -> list[str]:
        warnings = []
        if len(TAPS.templates):
            _settle()
        if self._graph is not None:
            self._hooks.records_elsewhere = self._graph.close()
            if TAPS.late and not self._graph.cells.entered:
                warnings.append(_LATE)
        TAPS.listener = None
        return warnings

    def _directory(self) -> _GraphDirectory:
        """Made when the first Cell runs in a graph."""
        with self._making:  # taps call from the threads of the runtime
            if self._graph is None:
                self._graph = _GraphDirectory(self._context)
                self._graph.cells.open = True
            return self._graph
