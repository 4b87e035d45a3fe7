"""Everything that is hooked into MindSpore for one step, put in and taken out as a whole."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from mindspore._c_expression import TensorPy

from msprobe.collect.custom import CustomApis
from msprobe.collect.recorder import Recorder
from msprobe.collect.selection import Selection
from msprobe.collect.tokens import TokenRange
from msprobe.collect.values import Values
from msprobe.config import Settings
from msprobe.dump.writer import RankWriter
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.apis.api_patches import ApiPatches
from msprobe.mindspore.apis.jit_regions import JitRegions
from msprobe.mindspore.cells.cell_calls import Cells, Named, is_compiled, named_below
from msprobe.mindspore.executor import requires_grad
from msprobe.mindspore.gradients.backward_graph import AVAILABLE, node_of, tensors_in
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.gradients.parameter_gradients import ParameterGradients
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.stats import CRC, LOW_PRECISION, STATS, XOR


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
        batch=Values(TensorTexts(CRC, None)),
    )


@dataclass(frozen=True)
class TaskHooks:
    """What a task puts in the place of plain recording."""

    recorder: Callable[[Settings, Any, Selection, TensorTexts], Any] = plain_recorder
    gradients: Callable[[Any, TensorTexts], Gradients] = Gradients
    parameters: Callable[[Any], ParameterGradients] = ParameterGradients
    apis: Callable[[Any, Any], Apis] = Apis
    cells: Callable[[Any, Any, Sequence[Named]], Cells] = Cells


RECORDING = TaskHooks()


class MindSporeProbe:
    def __init__(
        self,
        settings: Settings,
        writer: RankWriter,
        selection: Selection,
        sites: Optional[ApiPatches],
        custom: CustomApis,
        parts: TaskHooks = RECORDING,
    ) -> None:
        texts = TensorTexts(wanted_statistics(settings), writer)
        self._task = parts
        self.recorder: Recorder = parts.recorder(settings, writer, selection, texts)
        self._level = settings.level
        self._gradients = parts.gradients(self.recorder, texts)
        self._parameters = parts.parameters(self.recorder)
        self._sites = sites
        self._custom = custom
        self._apis = parts.apis(self.recorder, self._gradients) if sites is not None else None
        self._jit = JitRegions(self._apis, self._suspend, self._resume)
        self._models: Sequence[Any] = ()
        self._hooks: list[int] = []
        self._cells: Optional[Cells] = None
        self._tokens: Optional[TokenRange] = None

    def install(self, models: Sequence[Any], token_range: Optional[tuple[int, int]]) -> None:
        self._jit.remove()
        self._models = models
        if token_range is None:
            self._put_in()
        else:
            self._tokens = TokenRange(models, token_range, self._put_in, self._take_out)
            self._tokens.install()

    def remove(self) -> None:
        self._take_out()
        if self._tokens is not None:
            self._tokens.remove()
            self._tokens = None

    def keep_jit(self) -> None:
        """After `remove`: compiled regions alone go on being recorded, until the step ends."""
        self._jit.install(alone=True)

    def close(self) -> list[str]:
        self._jit.remove()
        self._parameters.remove()
        for number in self._hooks:
            TensorPy.remove_hook(number)
        if self._apis is not None:
            self._apis.end()
        self._gradients.close()
        told = []
        if not AVAILABLE:
            told.append(
                "this version of MindSpore does not show its backward graph: gradients were not recorded. "
                "MindSpore 2.10 does."
            )
        if self._gradients.repeated:
            told.append(
                f"{self._gradients.repeated} gradients came from further backward passes through the same graph; "
                "the first pass is recorded."
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
            title = f"{name}.{recorder.numbers.take(name)}.debug"
            self._write_debug(title, variable)
            if with_gradient and requires_grad():
                for tensor in tensors_in(variable, []):
                    if node_of(tensor) is not None:
                        grad_title = f"{name}_grad.{recorder.numbers.take(f'{name}_grad')}.debug"
                        self._hooks.append(TensorPy.register_hook(tensor, self._debug_hook(grad_title)))
        except Exception:
            recorder.fault(name, traceback.format_exc())

    def _debug_hook(self, title: str) -> Callable[[Any], None]:
        """Keeps a tensor's total gradient, when it comes."""

        def hook(gradient: Any) -> None:
            if self.recorder.closed:
                return
            try:
                self._write_debug(title, gradient)
            except Exception:
                self.recorder.fault(title, traceback.format_exc())

        return hook

    def _write_debug(self, title: str, value: Any) -> None:
        recorder = self.recorder
        path = title if recorder.tensors_path(title, "") else ""
        recorder.writer.debug(title, recorder.values.value(value, path))

    # In and out.

    def _put_in(self) -> None:
        if self._level == "debug":
            return
        named = list(named_below(self._models))
        if self._level in ("L0", "mix"):
            self._cells = self._task.cells(self.recorder, self._gradients, named)
            self._cells.install()
            self._watch_parameters(named)
        if self._sites is not None and self._apis is not None:
            self._sites.put_in(self._apis, [*self._models, *(each.cell for each in named)])
            self._custom.attach(self._apis)
        self._jit.install()

    def _watch_parameters(self, cells: Sequence[Named]) -> None:
        if self.recorder.selection.backward:
            for title, cell, _ in cells:
                if not is_compiled(cell):
                    self._parameters.watch(title, cell._params)
            self._parameters.install()

    def _take_out(self) -> None:
        self._jit.remove()
        if self._cells is not None:
            self._cells.remove()
            self._cells = None
        if self._sites is not None:
            self._custom.detach()
            self._sites.take_out()

    def _suspend(self) -> None:
        """Out while a compiled region runs, but for what user-registered functions have become."""
        if self._cells is not None:
            self._cells.remove()
        if self._sites is not None:
            self._sites.suspend()

    def _resume(self) -> None:
        if self._cells is not None:
            self._cells.install()
        if self._sites is not None:
            self._sites.resume()
