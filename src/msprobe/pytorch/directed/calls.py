"""The APIs and modules of a directed run: recorded as usual, with the act of the directions at the call they name."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any, Callable, Optional

import torch

from msprobe.collect.run.directed import StepActs
from msprobe.config.directions import Directions, write_report
from msprobe.dump.names import is_module
from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.directed.generators import sample
from msprobe.pytorch.directed.grafting import Grafts
from msprobe.pytorch.directed.repeat import copy_arguments, keep_results, random_states, repeat
from msprobe.pytorch.gradients.backward_graph import InputEdges, tensors_in
from msprobe.pytorch.modules.module_calls import Modules, is_traced


class TorchActs(StepActs):
    """Also its grafts."""

    def __init__(self, directions: Directions, step: int, rank: Optional[int]) -> None:
        super().__init__(directions, step, rank)
        self.grafts = Grafts([one for one in directions.grafts if (one.step, one.rank) == (step, rank)])


class DirectedApis(Apis):
    frames = 3

    def __init__(self, *parts: Any, acts: TorchActs) -> None:
        super().__init__(*parts)
        self._acts = acts
        self._counts: Counter[str] = Counter()
        acts.grafts.on_write = self._texts.written

    def record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        acts = self._acts
        name = f"{api.title}.{self._counts[api.title]}.forward"
        self._counts[api.title] += 1
        if api.random:
            generator = kwargs.get("generator")
            acts.draws.append((name, sample(generator if isinstance(generator, torch.Generator) else None)))
        wanted = acts.wants(name) if acts.repeat is not None else None
        if name in acts.grafts.names:
            return self._graft(name, api, func, args, kwargs)
        if wanted is None:
            return super().record(api, func, args, kwargs)
        if api.collective:
            write_report(wanted.report, {"collective": True})
            return super().record(api, func, args, kwargs)
        values, states = copy_arguments((args, kwargs)), random_states()
        flags = [one.requires_grad for one in tensors_in((args, kwargs), [])]
        output = super().record(api, func, args, kwargs)
        try:
            for one, flag in zip(tensors_in(values, []), flags):
                one.requires_grad_(flag)
            write_report(wanted.report, repeat(func, values, states, wanted.times, wanted.name != name))
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        return output

    def _graft(self, name: str, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The record has the values that the script continues with."""
        grafts = self._acts.grafts
        grafts.put_inputs(name, args, kwargs)
        edges = InputEdges(args, kwargs) if grafts.wants_gradient(name) and torch.is_grad_enabled() else None
        given = [] if api.inplace or "out" in kwargs else tensors_in((args, kwargs), [])

        def call(*args: Any, **kwargs: Any) -> Any:
            output = grafts.put_outputs(name, func(*args, **kwargs), given)
            if edges is not None:
                grafts.put_gradients(name, edges, output)
            return output

        return super().record(api, call, args, kwargs)


class DirectedModules(Modules):
    """A module is repeated without its hooks: `forward` is called directly."""

    def __init__(self, *parts: Any, acts: TorchActs) -> None:
        super().__init__(*parts)
        self.acts = acts
        self._kept: dict[str, tuple[Any, ...]] = {}
        self._counts: Counter[str] = Counter()
        self._edges: dict[str, InputEdges] = {}
        self._handles: list[Any] = []

    def _before(self, title: str, module: Any, args: Any, kwargs: Any = None) -> None:
        grafts, recorder = self.acts.grafts, self._recorder
        if grafts.names and not recorder.closed and not is_traced():
            name = f"{title}.forward.{self._counts[title]}"
            self._counts[title] += 1
            if name in grafts.names:
                grafts.put_parameters(name, module._parameters)
                grafts.put_inputs(name, args, kwargs or {})
                if grafts.wants_gradient(name) and torch.is_grad_enabled():
                    self._edges[name] = InputEdges(args, kwargs or {})
        super()._before(title, module, args, kwargs)

    def _after(self, title: str, module: Any, args: Any, *kwargs_and_output: Any) -> Any:
        grafts, output = self.acts.grafts, kwargs_and_output[-1]
        name = self._recorder.parent
        if not grafts.names or name not in grafts.names or not name.startswith(f"{title}.forward."):
            return super()._after(title, module, args, *kwargs_and_output)
        new = grafts.put_outputs(name, output, tensors_in(args, []))
        edges = self._edges.pop(name, None)
        if edges is not None:
            grafts.put_gradients(name, edges, new)
        super()._after(title, module, args, *kwargs_and_output[:-1], new)
        return new

    def install(self) -> None:
        super().install()
        for title, module in self._named() if self.acts.grafts.names else ():
            self._handles += self.acts.grafts.hook_parameters(title, module._parameters)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        super().remove()

    def _enter(self, title: str, parents: list[str], args: Any, kwargs: Any) -> str:
        name = super()._enter(title, parents, args, kwargs)
        if self.acts.repeat is not None and is_module(self.acts.repeat.name) and self.acts.wants(name) is not None:
            self._kept[name] = (copy_arguments((args, kwargs)), random_states())
        return name

    def _leave(self, title: str, module: Any, output: Any) -> None:
        name = self._recorder.parent
        super()._leave(title, module, output)
        kept = self._kept.pop(name, None) if name is not None else None
        if kept is None or name is None:
            return
        wanted = self.acts.wants(name)
        assert wanted is not None
        values, states = kept
        self._recorder.closed, closed = True, self._recorder.closed  # what runs now is not part of the script
        try:
            found = repeat(module.forward, values, states, wanted.times, wanted.name != name)
            if wanted.results and wanted.name == name:
                found["results_kept"] = keep_results(module, values, states, wanted.results)
            write_report(wanted.report, found)
        finally:
            self._recorder.closed = closed
