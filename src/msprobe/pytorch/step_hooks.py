"""All hooks in PyTorch for one step, installed and removed together."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from msprobe.collect.constructors import note_constructors
from msprobe.collect.custom import CustomApis
from msprobe.collect.parallel import ParallelRecord
from msprobe.collect.probe import Companion
from msprobe.collect.records.phases import Phases
from msprobe.collect.records.recorder import Recorder, Writer
from msprobe.collect.records.saved_variables import VariableAccess
from msprobe.collect.step_context import StepContext
from msprobe.frameworks.pytorch.api_table import ApiTable
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.made_values import MadeValues
from msprobe.pytorch.apis.mode_scope import ApiModeScope, FusedPaths
from msprobe.pytorch.apis.mode_stack import is_on, take_off
from msprobe.pytorch.apis.opaque_regions import CLOSED, effective_mode
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.gradients.after_backward import GradientsAfterBackward
from msprobe.pytorch.gradients.backward_graph import requires_grad
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.gradients.compiled_autograd import CompiledBackward
from msprobe.pytorch.modules.copies import RootHooks
from msprobe.pytorch.modules.model_tree import ModelTree
from msprobe.pytorch.modules.module_calls import Modules
from msprobe.pytorch.parallel.layouts import Layouts
from msprobe.pytorch.parallel.parallel_facts import ParallelFacts
from msprobe.pytorch.parallel.pipeline import PipelineCalls
from msprobe.pytorch.parallel.topology import LivingObjects
from msprobe.pytorch.rollout.trainer_tokens import TrainerTokens
from msprobe.pytorch.tensors import accelerators
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.pytorch.tensors.variables import TorchVariables
from msprobe.pytorch.training.training_events import TrainingEvents
from msprobe.pytorch.training.updates import ParameterUpdates
from msprobe.stats import CRC, ORDER, STATS


def digest_texts() -> TensorTexts:
    """Renders the digests of the first batch."""
    return TensorTexts(CRC, None, remembers=False)


def _plain_recorder(context: StepContext, writer: Writer, texts: TensorTexts) -> Recorder:
    return context.make_recorder(texts, digest_texts(), writer)


def _no_companions(hooks: TorchHooks) -> Sequence[Companion]:
    return ()


@dataclass(frozen=True)
class TaskHooks:
    """The hooks of a task or a level; the defaults record every wanted call."""

    recorder: Callable[[StepContext, Any, TensorTexts], Any] = _plain_recorder
    gradients: Callable[[Any], Gradients] = Gradients
    apis: Callable[..., Apis] = Apis
    modules: Callable[..., Modules] = Modules
    companions: Callable[[TorchHooks], Sequence[Companion]] = _no_companions
    defers: bool = True  # on an accelerator, statistics may be read back after the record is made


@dataclass(frozen=True)
class ApiSources:
    """Where APIs are found. `table` is None at levels that do not hook APIs."""

    table: Optional[ApiTable]
    names: OperatorNames
    custom: CustomApis


class TorchHooks:
    forward_hooks = RootHooks
    records_elsewhere = 0

    def __init__(self, context: StepContext, task: TaskHooks, sources: ApiSources, living: LivingObjects) -> None:
        wanted = context.task.statistics
        kinds = accelerators.device_kinds() if task.defers else frozenset()
        self._deferred: Optional[accelerators.DeferredWriter] = None
        statistics = accelerators.DeviceStatistics(kinds) if kinds and wanted == STATS | ORDER else None
        if statistics is not None:
            self._deferred = accelerators.DeferredWriter(context.writer, statistics)
        self.level = context.level
        self._compile = effective_mode(context.settings.compile, context.level.apis)
        parallel = ParallelRecord(context.header)
        layouts = Layouts(parallel)
        numbers = context.task.records_every_call and context.level.sees_calls and not context.level.kernels
        self.texts = TensorTexts(wanted, context.writer, statistics, context.level.apis, layouts, numbers)
        self.recorder: Recorder = task.recorder(context, self._deferred or context.writer, self.texts)
        self.gradients = task.gradients(self.recorder)
        self.variables: Optional[VariableAccess] = TorchVariables(self.texts) if context.level.saves_variables else None
        self.apis: Optional[Apis] = None
        self._made: Optional[MadeValues] = None
        self._models: Sequence[Any] = ()
        if sources.table is not None:
            self.apis = task.apis(self.recorder, self.gradients, self.texts, sources.table, sources.names)
            if numbers and self.recorder.with_inputs and self.recorder.selection.everything:
                self._made = MadeValues(self.recorder, self.texts)
                self.apis.follow(self._made)
        self._tree = ModelTree()
        self.watchers = self._make_watchers(context, parallel, layouts, living)
        self._task = task
        self._sources = sources
        self._header = context.header if context.task.records_every_call and context.settings.extra_info else None
        self._companions = task.companions(self)
        self._installed: list[Callable[[], None]] = []

    def _make_watchers(
        self, context: StepContext, parallel: ParallelRecord, layouts: Layouts, living: LivingObjects
    ) -> list[Companion]:
        compiled = CompiledBackward(self.recorder, self.gradients)
        if not context.task.records_every_call:
            return [compiled]
        unseen: Optional[GradientsAfterBackward] = None
        if context.level.modules and not context.level.kernels:
            unseen = GradientsAfterBackward(self.recorder, self.gradients, self._tree)
        read_gradients = None if unseen is None else unseen.read_all
        pipeline = PipelineCalls(self.recorder, parallel, self.texts.forget, read_gradients)
        facts = ParallelFacts(self.recorder, parallel, layouts, living, pipeline)
        phases = Phases(self.recorder.writer.phase, self.gradients, requires_grad)
        if not context.level.kernels:  # at L2 there are records only of operators
            self.recorder.phases = phases
        updates = None
        section = context.task.settings.section
        selects = any(getattr(section, key, ()) for key in ("scope", "list"))  # some calls: not every parameter, then
        if context.task.with_data and context.level.sees_calls and not context.level.kernels and not selects:
            updates = ParameterUpdates(self.recorder, self.texts)
        events = TrainingEvents(self.recorder, self.texts, self._tree, phases, updates, unseen)
        watchers: list[Companion] = [events, compiled] if unseen is None else [events, compiled, unseen]
        if context.level.modules and not context.level.kernels:
            watchers.append(TrainerTokens(self.recorder, context.writer.directory))
        return [*watchers, facts]

    def install(self, models: Sequence[Any]) -> None:
        level, parts = self.level, []
        modules: Optional[Modules] = None
        self._tree.forget()  # with a token range, this is later than start()
        if level.modules and models:
            modules = self._task.modules(self.recorder, self.gradients, models)
            modules.inside = self._compile != CLOSED
            modules.tree = self._tree
            parts.append((modules.install, modules.remove))
            if not level.apis:
                fused = FusedPaths(modules, models, self.recorder, self._compile)
                parts.append((fused.install, fused.remove))
        if self.apis is not None:
            scope = ApiModeScope(self.apis, modules, models, self._compile)
            parts.append((scope.install, scope.remove))
            self._sources.names.install()
            self._sources.custom.attach(self.apis)
        self._installed = []
        for install, remove in parts:
            self._installed.append(remove)  # before it is installed, so that it is also removed if installing fails
            install()
        for companion in self._companions:
            self._installed.append(companion.remove)
            companion.install(models)
        self._models = models
        self._tree.forget()
        if modules is not None and self._header is not None:
            note_constructors(self._header, models, "Module", modules.named(), self.recorder.fault)

    def remove(self) -> None:
        for remove in reversed(self._installed):
            try:
                remove()
            except Exception:  # the others are removed all the same
                self.recorder.fault("stop", traceback.format_exc())
        self._installed = []
        if self._made is not None and not self.recorder.closed:
            self._made.tell_held(self._tree.plain(self._models) or ())
        self._models = ()
        self._tree.forget()
        if self.apis is not None:
            self.apis.pause()
            self._sources.custom.detach()
            self._sources.names.remove()
        if self._deferred is not None:
            self._deferred.settle()

    def close(self) -> list[str]:
        warnings = [warning for companion in self._companions for warning in companion.close()]
        if self.apis is not None:
            self.apis.end()
            while is_on(self.apis):  # stop() inside a backward pass: torch has restored the mode since
                take_off(self.apis)
        self.gradients.close()
        if self._deferred is not None:
            self._deferred.settle()
        self.texts.release()  # now: the rest of the step may wait for the garbage collector
        return warnings
