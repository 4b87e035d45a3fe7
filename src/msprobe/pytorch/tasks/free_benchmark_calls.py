"""free_benchmark on PyTorch: runs every wanted API a second time on changed input and compares the results.

The second run does not affect training: it uses copies where the call writes its input, builds no graph, and restores
the random state. Collectives are never run twice. An API that cannot be run again is logged once. With `fix` the
second result, cast back, replaces the first.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import Any, Optional

import torch

from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.gradients.backward_graph import InputEdges, tensors_in
from msprobe.pytorch.tasks.free_benchmark_gradients import FirstRun, FreeBenchmarkGradients
from msprobe.pytorch.tasks.overflow_calls import writes
from msprobe.pytorch.tasks.perturb import change_arguments, map_leaves
from msprobe.pytorch.tasks.second_run import TorchSecondRun


class FreeBenchmarkApis(Apis):
    """Runs every wanted API, and runs it again."""

    def __init__(self, *parts: Any, second: TorchSecondRun) -> None:
        super().__init__(*parts)
        self.second = second

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        title = f"{api.prefix}.{api.name}"
        name, second, wanted = title, self.second, False
        try:
            name = f"{title}.{recorder.numbers.take(title)}"
            wanted = second.wants(recorder.selection, name, recorder.parents)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        if not wanted:
            return func(*args, **kwargs)
        if api.collective or second.run.section.fuzz_stage == "backward":
            if api.collective:
                second.run.skip(title, "a collective is never run a second time")
                return func(*args, **kwargs)
            return self._run_watched(api, func, args, kwargs, name)
        before: Any = None
        random = None
        try:
            random = second.random_state(api)
            if writes(api, args, kwargs) and second.first_float(args, kwargs) is not None:
                before = map_leaves((args, kwargs), _copy)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        output = func(*args, **kwargs)
        try:
            return self._check(api, func, args, kwargs, output, name, before, random)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _check(
        self, api: Api, func: Any, args: Any, kwargs: Any, output: Any, name: str, before: Any, random: Any
    ) -> Any:
        second = self.second
        given, named = before if before is not None else (args, kwargs)
        target = second.first_float(given, named)
        first = tensors_in(output, [])
        if target is None or not first:
            return output
        graph = second.fixes and before is None
        several = before is not None and second.run.section.if_preheat  # each second run writes what it receives

        def again(mode: str) -> list[Any]:
            args, kwargs = map_leaves((given, named), _copy) if several else (given, named)
            return tensors_in(self._again(func, args, kwargs, random, mode, graph and mode == second.mode), [])

        nested = not isinstance(output, torch.Tensor)
        call = second.make_call(name, target, first, nested)
        results = second.forward(call, again, lambda: second.stacks.number(5))
        return _replace(output, iter(results), before is not None) if second.fixes and results else output

    def _again(self, func: Any, args: Any, kwargs: Any, random: Any, mode: str, graph: bool) -> Any:
        with ExitStack() as stack:
            self.second.isolate(random, stack)
            if not graph:
                stack.enter_context(torch.no_grad())
            new_args, new_kwargs = change_arguments(mode, args, kwargs)
            return func(*new_args, **new_kwargs)

    def _run_watched(self, api: Api, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """The backward stage: keeps the call until its gradients come."""
        gradients, second = self._gradients, self.second
        inputs: Optional[InputEdges] = None
        kept = None
        try:
            writing = not api.untracked and writes(api, args, kwargs)  # if it is unknown, versions show it later
            if torch.is_grad_enabled() and not writing:
                inputs = InputEdges(args, kwargs)
                if inputs.edges or inputs.leaves:
                    random = second.random_state(api)
                    tensors = tensors_in((args, kwargs), [])
                    versions = [(tensor, tensor._version) for tensor in tensors]
                    stack = second.stacks.number(2)
                    kept = FirstRun(func, args, kwargs, versions, random, second.autocast(), stack)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        output = func(*args, **kwargs)
        try:
            if kept is not None and inputs is not None:
                assert isinstance(gradients, FreeBenchmarkGradients)
                gradients.checks.keep(f"{name}.backward", kept)
                gradients.watch(f"{name}.forward", list(self._recorder.parents), inputs, output)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        return output

    def open_opaque(self, api: Api, args: Any) -> Any:
        self.second.run.skip(api.title, "what runs inside it is not seen")
        return None


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _replace(output: Any, results: Any, written: bool) -> Any:
    """fix: the second results, in the dtype and on the device of the first; written where the call writes its input."""

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        result = next(results).to(value.device, value.dtype)
        if not written:
            return result
        with torch.no_grad():
            value.copy_(result)
        return value

    return map_leaves(output, put)
