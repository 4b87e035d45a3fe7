"""Everything that is hooked into PyTorch for one step, put in and taken out as a whole."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from msprobe.collect.recorder import Recorder
from msprobe.collect.selection import Selection
from msprobe.collect.tokens import TokenRange
from msprobe.collect.values import Values
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.frameworks.pytorch.api_table import ApiTable
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.apis.custom import CustomApis
from msprobe.pytorch.apis.mode_scope import ApiModeScope, FusedPaths
from msprobe.pytorch.apis.mode_stack import is_on, take_off
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.gradients.after_backward import GradientsAfterBackward
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.modules.copies import RootHooks
from msprobe.pytorch.modules.module_calls import Modules
from msprobe.pytorch.tensors import accelerators
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.pytorch.training.training_events import TrainingEvents
from msprobe.stats import CRC, LOW_PRECISION, STATS, XOR

_WITH_EVENTS = ("statistics", "tensor", "structure")


def wanted_statistics(settings: Settings) -> int:
    want = {"md5": STATS | CRC, "xor": XOR}.get(str(getattr(settings.section, "summary_mode", "")), STATS)
    return want | LOW_PRECISION if settings.precision == "low" else want


def plain_recorder(settings: Settings, writer: Any, selection: Selection, texts: TensorTexts) -> Recorder:
    return Recorder(
        writer,
        Values(texts),
        selection,
        with_data=settings.task != "structure",
        with_stacks=settings.extra_info,
        saves=selection.saves,
        batch=Values(TensorTexts(CRC, None, remembers=False)),
    )


@dataclass(frozen=True)
class TaskHooks:
    """What a task puts in the place of plain recording."""

    recorder: Callable[[Settings, Any, Selection, TensorTexts], Any] = plain_recorder
    gradients: Callable[[Any], Gradients] = Gradients
    apis: Callable[..., Apis] = Apis
    modules: Callable[..., Modules] = Modules
    defers: bool = True  # on an accelerator, numbers may come later than the record


RECORDING = TaskHooks()


class TorchProbe:
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        table: Optional[ApiTable],
        spelling: OperatorNames,
        custom: CustomApis,
        parts: TaskHooks = RECORDING,
    ) -> None:
        want = wanted_statistics(settings)
        kinds = accelerators.device_kinds() if parts.defers else frozenset()
        self._deferred: Optional[accelerators.DeferredWriter] = None
        statistics = accelerators.DeviceStatistics(kinds) if kinds and want == STATS else None
        if statistics is not None:
            self._deferred = accelerators.DeferredWriter(writer, statistics)
        self._texts = TensorTexts(want, writer, statistics, remembers=settings.level != "L0")
        self._task = parts
        self.recorder: Recorder = parts.recorder(settings, self._deferred or writer, selection, self._texts)
        self._level = settings.level
        self._gradients = parts.gradients(self.recorder)
        self._spelling = spelling
        self._custom = custom
        self._apis: Optional[Apis] = None
        if table is not None and settings.level != "L0":
            self._apis = parts.apis(self.recorder, self._gradients, self._texts, table, spelling)
        self._tokens: Optional[TokenRange] = None
        self._unseen: Optional[GradientsAfterBackward] = None
        self._events: Optional[TrainingEvents] = None
        if settings.task in _WITH_EVENTS:
            if settings.level in ("L0", "mix"):
                self._unseen = GradientsAfterBackward(self.recorder, self._gradients)
            self._events = TrainingEvents(self.recorder, self._unseen)
        self._saved: list[Any] = []

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None:
        if self._events is not None:
            self._events.install(models)
        if self._unseen is not None:
            self._unseen.install(models)
        if token_range is None:
            self._put_in(models)
        else:
            if self._tokens is None:  # it counts on from one segment of the step to the next
                self._tokens = TokenRange(models, token_range, lambda: self._put_in(models), self._take_out, RootHooks)
            self._tokens.install()

    def remove(self) -> None:
        self._take_out()
        if self._events is not None:
            self._events.remove()
        if self._unseen is not None:
            with torch._C.DisableTorchFunction():
                self._unseen.begin()  # a backward pass may still come before the step ends
        if self._deferred is not None:
            self._deferred.settle()
        if self._tokens is not None:
            self._tokens.remove()

    def close(self) -> list[str]:
        if self._apis is not None:
            self._apis.end()
            while is_on(self._apis):  # stop() inside of a backward pass: torch has put it back since
                take_off(self._apis)
        if self._unseen is not None:
            with torch._C.DisableTorchFunction():
                self._unseen.end()
            self._unseen.close()
        self._gradients.close()
        for handle in self._saved:
            handle.remove()
        self._saved.clear()
        if self._deferred is not None:
            self._deferred.settle()
        self._texts.forget()  # now: the rest of the step may have to wait for the garbage collector
        told = []
        if self._gradients.repeated:
            told.append(
                f"{self._gradients.repeated} gradients came from further backward passes through the same graph "
                "(retain_graph); the first pass is recorded."
            )
        if self._gradients.without_node:
            some = sorted(self._gradients.without_node)[:3]
            told.append(
                f"{len(self._gradients.without_node)} calls returned their input unchanged (first: {', '.join(some)}): "
                "they have no backward record."
            )
        return told

    def save(self, variable: Any, name: str, with_gradient: bool) -> None:
        recorder = self.recorder
        try:
            with torch._C.DisableTorchFunction():
                self._texts.forget()
                title = f"{name}.{recorder.numbers.take(name)}.debug"
                path = title if recorder.tensors_path(title, "") else ""
                recorder.writer.debug(title, recorder.values.value(variable, path))
                if with_gradient:
                    self._save_gradients(variable, name)
        except Exception:
            recorder.fault(name, traceback.format_exc())

    def _save_gradients(self, variable: Any, name: str) -> None:
        """Each tensor's total gradient, when it comes."""
        recorder = self.recorder
        wanted = [tensor for tensor in tensors_in(variable, []) if tensor.requires_grad]
        for tensor in wanted:
            title = f"{name}_grad.{recorder.numbers.take(f'{name}_grad')}.debug"

            def hook(gradient: Any, title: str = title) -> None:
                if recorder.closed:
                    return
                try:
                    with torch._C.DisableTorchFunction():
                        self._texts.forget()
                        path = title if recorder.tensors_path(title, "") else ""
                        recorder.writer.debug(title, recorder.values.value(gradient, path))
                except Exception:
                    recorder.fault(title, traceback.format_exc())

            self._saved.append(tensor.register_hook(hook))

    # In and out.

    def _put_in(self, models: Sequence[Any]) -> None:
        parts: list[Any] = []
        modules = None
        if self._level in ("L0", "mix"):
            modules = self._task.modules(self.recorder, self._gradients, models)
            parts.append(modules)
            if self._level == "L0":
                parts.append(FusedPaths(modules, models, self.recorder))
        if self._apis is not None:
            parts.append(ApiModeScope(self._apis, modules))
            self._spelling.install()
            self._custom.attach(self._apis)
        self._parts = []
        for part in parts:
            self._parts.append(part)  # before: what fails half-way is taken out as well
            part.install()

    def _take_out(self) -> None:
        for part in reversed(getattr(self, "_parts", [])):
            part.remove()
        self._parts = []
        if self._apis is not None:
            self._apis.pause()
            self._custom.detach()
            self._spelling.remove()
