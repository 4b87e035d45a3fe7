"""The APIs and Cells of a directed run: recorded as usual, and the chosen one is repeated."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any, Callable, Optional

from msprobe.collect.run.directed import StepActs
from msprobe.config.directions import Directions, Repeat, write_report
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.cells.cell_calls import Cells
from msprobe.mindspore.directed.generators import sample_call
from msprobe.mindspore.directed.repeat import RandomState, copy_arguments, repeat_backward, repeat_forward
from msprobe.mindspore.executor import synchronize
from msprobe.mindspore.tasks.side_effects import side_effects_of


class MindSporeActs(StepActs):
    def __init__(self, directions: Directions, step: int, rank: Optional[int]) -> None:
        super().__init__(directions, step, rank)
        self.at_end: list[Callable[[], None]] = []
        """What waits until MindSpore no longer differentiates."""

    def repeat_call(self, wanted: Repeat, name: str, call: Any, values: Any, before: RandomState) -> None:
        """The forward now, the backward when the step ends."""
        if wanted.name == name:
            write_report(wanted.report, repeat_forward(call, values, before, wanted.times))
        else:
            self.at_end.append(lambda: write_report(wanted.report, repeat_backward(call, values, before, wanted.times)))


class DirectedApis(Apis):
    frames = 4

    def __init__(self, *parts: Any, acts: MindSporeActs) -> None:
        super().__init__(*parts)
        self._acts = acts
        self._counts: Counter[str] = Counter()

    def record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        name = f"{api.title}.{self._counts[api.title]}.forward"
        self._counts[api.title] += 1
        kept = None
        try:
            kept = self._prepare(name, api, func, args, kwargs)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        output = super().record(api, func, args, kwargs)
        if kept is not None:
            synchronize()  # an operator of the script that fails raises here
            try:
                self._acts.repeat_call(kept[0], name, func, *kept[1:])
            except Exception:
                self._recorder.fault(name, traceback.format_exc())
        return output

    def _prepare(self, name: str, api: Api, func: Any, args: Any, kwargs: Any) -> Optional[tuple[Any, ...]]:
        """Notes what the call draws from. Returns what is needed to repeat it, if that is wanted and possible."""
        effects = side_effects_of(api, func, args, kwargs)
        if effects.random:
            self._acts.draws.append((name, sample_call(api, func)))
        wanted = self._acts.wants(name)
        if wanted is None:
            return None
        if api.collective or effects.collective or effects.random:
            write_report(wanted.report, {"collective": not effects.random, "random": effects.random})
            return None
        return wanted, copy_arguments((args, kwargs)), RandomState()


class DirectedCells(Cells):
    """A Cell is repeated while nothing is recorded."""

    def __init__(self, *parts: Any, acts: MindSporeActs) -> None:
        super().__init__(*parts)
        self.acts = acts
        self._kept: dict[str, tuple[Any, ...]] = {}

    def _enter(self, title: str, parents: list[str], args: Any, kwargs: Any) -> str:
        name = super()._enter(title, parents, args, kwargs)
        if self.acts.repeat is not None and self.acts.wants(name) is not None:
            self._kept[name] = (len(self.acts.draws), copy_arguments((args, kwargs)), RandomState())
        return name

    def _leave(self, title: str, module: Any, output: Any) -> None:
        name = self._recorder.parent
        super()._leave(title, module, output)
        kept = self._kept.pop(name, None) if name is not None else None
        wanted = self.acts.wants(name) if name is not None else None
        if kept is None or wanted is None or name is None:
            return
        if len(self.acts.draws) > kept[0]:
            write_report(wanted.report, {"random": True})
            return
        self._recorder.closed, closed = True, self._recorder.closed  # what runs now is not part of the script
        try:
            self.acts.repeat_call(wanted, name, module, *kept[1:])
        finally:
            self._recorder.closed = closed
