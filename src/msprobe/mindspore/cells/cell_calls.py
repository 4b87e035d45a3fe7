"""Cells (level L0 and mix): forward pre- and post-hooks on every Cell below the model.

The hooks are put directly into the tables of the Cells. After a registration, MindSpore would compile every `jit`
function again, at every start and stop, although compiled code never runs these hooks.

The backward of a Cell is read from the graph, like that of an API. So Cells with dict or mixed outputs have one too.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from mindspore.nn import Cell

from msprobe.collect.calls.module_calls import ModuleCalls
from msprobe.collect.calls.module_names import ModuleFacts, name_modules
from msprobe.collect.records.recorder import Recorder
from msprobe.mindspore.executor import backward_pass
from msprobe.mindspore.features import HOOKS_RUN_AFTER_ERRORS
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.tensors.late_errors import raise_kept

_KEY = "msprobe"
_TABLES = (
    "_forward_pre_hook",
    "_forward_pre_hook_with_kwargs",
    "_forward_hook",
    "_forward_hook_with_kwargs",
    *(("_forward_hook_always_called",) if HOOKS_RUN_AFTER_ERRORS else ()),
)
_RECOMPUTE = "_recompute_cell"  # MindSpore's own wrapper of a recomputed Cell


class Models(list[Any]):
    """Models that the user passed as a list or tuple: the names of their Cells contain the index of the model."""


class NamedCell(NamedTuple):
    """A Cell, the title of its records, and the title of the Cell around it."""

    title: str
    cell: Any
    around: Optional[str]


def is_compiled(cell: Any) -> bool:
    """Whether the construct of a Cell is under `jit` in ast mode: nothing inside it runs as Python."""
    construct = cell.construct
    return hasattr(construct, "__wrapped_by_jit__") and hasattr(construct, "__jit_graph_name__")


def named_below(models: Sequence[Any], inside: bool = False) -> Iterator[NamedCell]:
    """Every Cell below the models. A compiled Cell hides the Cells in it, unless `inside` asks for them."""

    def describe(cell: Any) -> ModuleFacts:
        compiled = is_compiled(cell)
        hidden = compiled and not inside
        children = () if hidden else reversed([item for item in cell._cells.items() if item[0] != _RECOMPUTE])
        return ModuleFacts(type(cell).__name__, compiled, children)

    for title, cell, around in name_modules(models, "Cell", isinstance(models, Models), describe):
        yield NamedCell(title, cell, around)


def titles_above(title: str, titles: Iterable[str]) -> list[str]:
    """The titles of the Cells around one, outermost first: `Cell.a.SequentialCell` for `Cell.a.0.Dense`."""
    place = title.rpartition(".")[0]
    found = {one for one in titles if place.startswith(one.rpartition(".")[0] + ".")}
    return sorted(found, key=len)


class Cells(ModuleCalls):
    """Installs the hooks on the models of one step and removes them."""

    def __init__(self, recorder: Recorder, gradients: Gradients, cells: Sequence[NamedCell]) -> None:
        super().__init__(recorder, gradients)
        self._run_construct: Any = None
        self._latest: dict[str, str] = {}  # the name of the last call of each Cell
        self._hooks = [(named.cell, self._pre_hook(named), self._post_hook(named.title)) for named in cells]

    def install(self) -> None:
        for cell, enter, leave in self._hooks:
            cell._forward_pre_hook[_KEY] = enter
            cell._forward_pre_hook_with_kwargs[_KEY] = True
            cell._forward_hook[_KEY] = leave
            cell._forward_hook_with_kwargs[_KEY] = True
            if HOOKS_RUN_AFTER_ERRORS:
                cell._forward_hook_always_called[_KEY] = True
        if not HOOKS_RUN_AFTER_ERRORS:
            self._leave_after_errors()

    def remove(self) -> None:
        for cell, _, _ in self._hooks:
            for table in _TABLES:
                getattr(cell, table).pop(_KEY, None)
        if self._run_construct is not None:
            Cell._run_construct, self._run_construct = self._run_construct, None

    def _pre_hook(self, named: NamedCell) -> Any:
        recorder, title, around = self._recorder, named.title, named.around
        latest = self._latest

        def enter(cell: Any, args: Any, kwargs: Any) -> None:
            if recorder.closed:
                return
            try:
                parents = list(recorder.parents)
                if not parents and around is not None and around in latest and backward_pass() >= 0:
                    parents = [latest[around]]  # recomputed: the Cell around it is not called again
                latest[title] = self._enter(title, parents, args, kwargs)
            except Exception:
                recorder.fault(title, traceback.format_exc())

        return enter

    def _leave_after_errors(self) -> None:
        """Before 2.10, a Cell that raises does not call its forward hooks: ours are called here."""
        original = self._run_construct = Cell._run_construct
        leaving = {id(cell): leave for cell, _, leave in self._hooks}

        def run(cell: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(cell, *args, **kwargs)
            except BaseException:
                if id(cell) in leaving:
                    leaving[id(cell)](cell, args, kwargs, None)
                raise

        Cell._run_construct = run

    def _post_hook(self, title: str) -> Any:
        recorder = self._recorder

        def leave(cell: Any, args: Any, kwargs: Any, output: Any) -> None:
            if recorder.closed:
                return
            try:
                self._leave(title, cell, output)
                if not recorder.parents:
                    self._gradients.forget_graph()
            except Exception:
                recorder.fault(title, traceback.format_exc())
            raise_kept()

        return leave

    def _parameters_of(self, module: Any) -> Mapping[str, Any]:
        return module._params
