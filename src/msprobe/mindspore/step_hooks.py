"""All hooks in MindSpore's dynamic graph for one step, installed and removed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

from msprobe.collect.constructors import note_constructors
from msprobe.collect.custom import CustomApis
from msprobe.collect.guard import run_all
from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.saved_variables import VariableAccess
from msprobe.collect.step_context import StepContext
from msprobe.collect.tokens import RegisteredHooks
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.apis.jit_regions import JitRegions
from msprobe.mindspore.cells.cell_calls import Cells, NamedCell, is_compiled, named_below, titles_above
from msprobe.mindspore.features import HAS_BACKWARD_GRAPH
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.gradients.parameter_gradients import ParameterGradients
from msprobe.mindspore.header import is_initialised
from msprobe.mindspore.parallel import Layouts, ParallelFacts, SpreadTexts
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.mindspore.tensors.variables import MindSporeVariables
from msprobe.stats import CRC


def digest_texts() -> TensorTexts:
    """Renders the digests of the first batch."""
    return TensorTexts(CRC, None)


def plain_recorder(context: StepContext, texts: TensorTexts) -> Recorder:
    return context.make_recorder(texts, digest_texts())


def _no_companions(hooks: MindSporeHooks) -> Sequence[Companion]:
    return ()


def make_texts(context: StepContext, layouts: Layouts) -> TensorTexts:
    if is_initialised():
        return SpreadTexts(context.task.statistics, context.writer, layouts)
    return TensorTexts(context.task.statistics, context.writer)


@dataclass(frozen=True)
class TaskHooks:
    """The hooks of a task or a level; the defaults record every wanted call."""

    recorder: Callable[[StepContext, TensorTexts], Any] = plain_recorder
    gradients: Callable[[Any, TensorTexts], Gradients] = Gradients
    parameters: Optional[Callable[[Any], ParameterGradients]] = ParameterGradients
    apis: Callable[[Any, Any], Apis] = Apis
    cells: Callable[[Any, Any, Sequence[NamedCell]], Cells] = Cells
    companions: Callable[[MindSporeHooks], Sequence[Companion]] = _no_companions


@dataclass(frozen=True)
class ApiSources:
    """Where APIs are found. `patches` is None at levels that do not hook APIs."""

    patches: Optional[ApiPatches]
    custom: CustomApis


class MindSporeHooks:
    forward_hooks = RegisteredHooks

    def __init__(self, context: StepContext, task: TaskHooks, sources: ApiSources) -> None:
        record = ParallelRecord(context.header)
        layouts = Layouts(record)
        texts = make_texts(context, layouts)
        self.level = context.level
        self.recorder: Recorder = task.recorder(context, texts)
        facts = ParallelFacts(self.recorder, record, layouts)
        self.watchers: Sequence[Companion] = [facts] if context.task.records_every_call else []
        self.gradients = task.gradients(self.recorder, texts)
        self.variables: Optional[VariableAccess] = MindSporeVariables() if context.level.saves_variables else None
        self.apis = task.apis(self.recorder, self.gradients) if sources.patches is not None else None
        self.records_elsewhere = 0
        self._task = task
        self._header = context.header if context.task.records_every_call and context.settings.extra_info else None
        self._parameters = None if task.parameters is None else task.parameters(self.recorder)
        self._sources = sources
        self._jit = JitRegions(self.apis, self._suspend, self._resume)
        self._cells: Optional[Cells] = None
        self._companions = task.companions(self)

    def install(self, models: Sequence[Any]) -> None:
        self._jit.remove()
        if not self.level.sees_calls:
            return
        try:
            self._jit.install()  # first: without it, MindSpore would compile the other hooks
            self._install(models)
        except Exception:
            self.remove()
            raise
        run_all([partial(companion.install, models) for companion in self._companions], self.recorder.fault)

    def _install(self, models: Sequence[Any]) -> None:
        named = list(named_below(models))
        if self.level.modules:
            self._cells = self._task.cells(self.recorder, self.gradients, named)
            self._cells.install()
            if self._header is not None:
                titled = ((each.title, each.cell) for each in named)
                note_constructors(self._header, models, "Cell", titled, self.recorder.fault)
            self._watch_parameters(named)
        if self._sources.patches is not None and self.apis is not None:
            custom = self._sources.custom
            self._sources.patches.put_in(self.apis, [*models, *(each.cell for each in named)], custom)
            custom.attach(self.apis)

    def remove(self) -> None:
        acts = [*(companion.remove for companion in reversed(self._companions)), self._jit.remove]
        if self._cells is not None:
            acts.append(self._cells.remove)
            self._cells = None
        if self._sources.patches is not None:
            acts += [self._sources.custom.detach, self._sources.patches.take_out]
        run_all(acts, self.recorder.fault)

    def keep_jit(self) -> None:
        """After `remove`: records compiled regions, and nothing else, until the step ends."""
        self._jit.install(alone=True)

    def close(self) -> list[str]:
        warnings: list[str] = []
        acts: list[Callable[[], None]] = [partial(_close, companion, warnings) for companion in self._companions]
        acts += [self._jit.remove] if self._parameters is None else [self._jit.remove, self._parameters.remove]
        acts += [self.gradients.close] if self.apis is None else [self.apis.end, self.gradients.close]
        run_all(acts, self.recorder.fault)
        if not HAS_BACKWARD_GRAPH:
            warnings.append(
                "backward records need MindSpore 2.7.1 or later, which shows its backward graph: gradients were not "
                "recorded."
            )
        return warnings

    def _watch_parameters(self, cells: Sequence[NamedCell]) -> None:
        parameters = self._parameters
        if parameters is not None and self.recorder.selection.backward:
            titles = [each.title for each in cells]
            for title, cell, _ in cells:
                if not is_compiled(cell):
                    parameters.watch(title, cell._params, titles_above(title, titles))
            parameters.install()

    def _suspend(self) -> None:
        """A compiled region begins: removes everything except the replacements of user-registered functions."""
        acts = [companion.suspend for companion in self._companions]
        if self._cells is not None:
            acts.append(self._cells.remove)
        if self._sources.patches is not None:
            acts.append(self._sources.patches.suspend)
        run_all(acts, self.recorder.fault)

    def _resume(self) -> None:
        acts = [] if self._cells is None else [self._cells.install]
        if self._sources.patches is not None:
            acts.append(self._sources.patches.resume)
        run_all([*acts, *(companion.resume for companion in self._companions)], self.recorder.fault)


def _close(companion: Companion, warnings: list[str]) -> None:
    warnings.extend(companion.close())
