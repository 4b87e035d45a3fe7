"""free_benchmark on MindSpore's dynamic graph: runs every wanted API a second time on changed input.

The second run does not affect training: it uses copies where the call writes its input, builds no graph, and restores
the random state. Collectives, compiled regions and calls whose random numbers cannot be drawn again are never run
twice, and are logged once. With `fix` the second result replaces the first.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import Any, NamedTuple, Optional

from mindspore import ops
from mindspore._c_expression import TensorPy

from msprobe.collect import notices
from msprobe.collect.records.recorder import Recorder
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.executor import differentiating, no_grad, requires_grad, synchronize
from msprobe.mindspore.features import HAS_BACKWARD_GRAPH
from msprobe.mindspore.gradients.backward_graph import tensors_in
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.tasks.dry_runs import HeldCall, has_no_double, key_of
from msprobe.mindspore.tasks.free_benchmark_gradients import FirstRun, FreeBenchmarkGradients, digests
from msprobe.mindspore.tasks.perturb import copy_of
from msprobe.mindspore.tasks.second_run import MindSporeSecondRun, Random
from msprobe.mindspore.tasks.side_effects import SideEffects, WatchedFunction, side_effects_of
from msprobe.tasks.free_benchmark import perturbation
from msprobe.tasks.free_benchmark.perturbation import TO_CPU, NotChanged, map_leaves
from msprobe.tasks.free_benchmark.second_run import Call

# Outputs that a kernel does not write.
_UNFILLED = {"BatchNorm": (1, 2, 3, 4), "FlashAttentionScore": (2,), "flash_attention_score": (2,)}
_PLACES = {
    "Functional": "mindspore.ops",
    "Primitive": "mindspore.ops",
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "MintDistributed": "mindspore.mint.distributed",
    "Distributed": "mindspore.communication.comm_func",
    "Tensor": "mindspore.Tensor",
}


class _Given(NamedTuple):
    """One call and its input; copies from before the call where it may write its input."""

    api: Api
    func: Any
    args: Any
    kwargs: Any
    written: bool
    random: Optional[Random]
    custom: bool


class FreeBenchmarkApis(Apis):
    """Runs every wanted API, and runs it again."""

    def __init__(self, recorder: Recorder, gradients: Gradients, second: MindSporeSecondRun) -> None:
        super().__init__(recorder, gradients)
        assert isinstance(gradients, FreeBenchmarkGradients)
        gradients.apis = self
        self.second = second
        self._customs: set[str] = set()

    def record_custom(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        self._customs.add(api.title)
        return self.call(api, func, args, kwargs)

    def end(self) -> None:
        """The step ends: tries what could not be tried while a differentiation was open."""
        super().end()
        self._leaf.depth = 1
        second = self.second
        try:
            for held in second.dry_runs.take():
                if differentiating():
                    second.dry_runs.missed += 1
                    continue
                second.forward(held.call, held.again, lambda stack=held.stack: stack)  # type: ignore[misc]
        except Exception:
            self._recorder.fault("free_benchmark", traceback.format_exc())
        finally:
            self._leaf.depth = 0
        if second.dry_runs.missed:
            notices.warn_once(
                f"free_benchmark: {second.dry_runs.missed} calls were not checked, because it was not yet known "
                "whether they run in raised precision; they are checked from the next step on."
            )

    def _wanted(self, api: Api, name: str) -> bool:
        selection = self._recorder.selection
        if self.second.wants(selection, name, self._recorder.parents):
            return True
        place = _PLACES.get(api.title.partition(".")[0])
        if place is None:
            return False
        spelling = f"{place}.{api.name}.{name.rpartition('.')[2]}"
        return selection.enter_as(spelling) or selection.enter_as(spelling.partition(".")[2])

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder, run = self._recorder, self.second.run
        title = api.title
        name, given = title, None
        try:
            name = f"{title}.{recorder.numbers.take(title)}"
            if self._wanted(api, name):
                custom = title in self._customs
                effects = SideEffects(True, False, False, -1) if custom else side_effects_of(api, func, args, kwargs)
                if title.startswith("Jit."):
                    run.skip(title, "what runs inside it is not seen")
                elif api.collective or effects.collective:
                    run.skip(title, "a collective is never run a second time")
                elif self.second.first_float(args, kwargs) is not None:
                    given = self._take(api, func, args, kwargs, effects, custom)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        if given is None:
            return func(*args, **kwargs)
        watched = WatchedFunction(func) if given.custom else func
        if run.section.fuzz_stage == "backward":
            return self._run_watched(given, watched, args, kwargs, name)
        output = watched(*args, **kwargs)
        synchronize()  # an operator of the script that fails raises here, and not where msprobe reads
        try:
            if self._may_run_again(given, watched):
                return self._check(given, output, name)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _take(self, api: Api, func: Any, args: Any, kwargs: Any, effects: SideEffects, custom: bool) -> _Given:
        random = Random.now(custom) if effects.random else None
        if effects.writes and self.second.run.section.fuzz_stage == "forward":
            args, kwargs = map_leaves((args, kwargs), (TensorPy,), copy_of)
        return _Given(api, func, args, kwargs, effects.writes, random, custom)

    def _may_run_again(self, given: _Given, watched: Any) -> bool:
        """Asked after the first run, which shows the side effects."""
        obstacle = ""
        if given.custom:
            obstacle = watched.obstacle()
        elif given.random is not None and not given.random.drawn():
            obstacle = "its random numbers cannot be drawn a second time"
            self.second.dry_runs.random = given.api.title
        if obstacle:
            self.second.run.skip(given.api.title, obstacle)
        return not obstacle

    def _check(self, given: _Given, output: Any, name: str) -> Any:
        second, dry_runs = self.second, self.second.dry_runs
        title = given.api.title
        target = second.first_float(given.args, given.kwargs)
        first = tensors_in(output, [])
        if target is None or not first:
            return output
        unfilled = _UNFILLED.get(given.api.name, ())
        first = [None if index in unfilled else tensor for index, tensor in enumerate(first)]
        call = second.make_call(name, target, first, not isinstance(output, TensorPy))
        modes = {second.mode, *((TO_CPU,) if second.run.section.if_preheat else ())}
        keys = {mode: key_of(mode, title, given.args, given.kwargs) for mode in modes}
        for mode, key in keys.items():
            if has_no_double(mode, title, call.dtype) and not dry_runs.failed(key):
                second.run.skip(title, "MindSpore has no float64 for it")
                dry_runs.refuse(key)
        if dry_runs.failed(keys[second.mode]):
            return output
        for key in keys.values():
            if not dry_runs.failed(key) and not dry_runs.trusts(key, not given.custom):
                self._try_later(given, call, key)
                return output
        results = second.forward(call, self._again(given, keys), lambda: second.stacks.number(6))
        return self._replace(given, output, results) if second.fixes and results else output

    def _try_later(self, given: _Given, call: Call, key: Any) -> None:
        second, dry_runs = self.second, self.second.dry_runs
        size = sum(tensor.nbytes for tensor in tensors_in((call.first, given.args, given.kwargs), []))
        if second.fixes:
            notices.warn_once(
                f"free_benchmark: {call.title} is replaced from the next step on; in this one it is tried in raised "
                "precision when the step has ended."
            )
        if not dry_runs.wants(key, size):
            return
        if not given.written:
            args, kwargs = map_leaves((given.args, given.kwargs), (TensorPy,), copy_of)
            given = given._replace(args=args, kwargs=kwargs)
        again = self._again(given, {key[0]: key})
        call = call._replace(first=[copy_of(tensor) for tensor in call.first])
        dry_runs.hold(HeldCall(call, again, second.stacks.number(5)))

    def _again(self, given: _Given, keys: dict[str, Any]) -> Any:
        """`again(mode)` for the comparison: the tensors of a second run."""
        second, dry_runs = self.second, self.second.dry_runs
        several = given.written and second.run.section.if_preheat

        def again(mode: str) -> list[Any]:
            key = keys.get(mode) or key_of(mode, given.api.title, given.args, given.kwargs)
            if dry_runs.failed(key):
                raise NotChanged
            graph = second.fixes and not given.written and requires_grad()
            args, kwargs = given.args, given.kwargs
            with ExitStack() as stack:
                second.isolate(given.random, stack)
                if not graph:
                    stack.enter_context(no_grad())
                if several:
                    args, kwargs = map_leaves((args, kwargs), (TensorPy,), copy_of)
                perturbations = second.perturbations_with_graph if graph else second.perturbations
                args, kwargs = perturbation.change_arguments(mode, args, kwargs, perturbations)
                try:
                    tensors = tensors_in(given.func(*args, **kwargs), [])
                    for tensor in tensors:
                        tensor.asnumpy()  # a failure is raised here and not at the next call of the script
                except Exception:
                    dry_runs.note(key, False)
                    raise
            dry_runs.note(key, True)
            return tensors

        return again

    def _replace(self, given: _Given, output: Any, results: Any) -> Any:
        """fix: the second results in the dtype of the first."""
        if given.written:
            self.second.run.skip(given.api.title, "the input that a call writes is not replaced, only compared")
            return output
        left = iter(results)

        def put(value: Any) -> Any:
            result = next(left)
            return result if result.dtype == value.dtype else ops.cast(result, value.dtype)

        return map_leaves(output, (TensorPy,), put)

    def _run_watched(self, given: _Given, watched: Any, args: Any, kwargs: Any, name: str) -> Any:
        """The backward stage: keeps the call until its gradients come."""
        recorder, second, gradients = self._recorder, self.second, self._gradients
        kept = inputs = None
        try:
            if HAS_BACKWARD_GRAPH and requires_grad() and not given.written:
                inputs = gradients.inputs(args, kwargs)
                if inputs.edges:
                    marks = digests(tensors_in((args, kwargs), []))
                    kept = FirstRun(given.func, args, kwargs, marks, given.random, second.stacks.number(3))
        except Exception:
            recorder.fault(name, traceback.format_exc())
        output = watched(*args, **kwargs)
        try:
            if kept is not None and inputs is not None and self._may_run_again(given, watched):
                assert isinstance(gradients, FreeBenchmarkGradients)
                gradients.checks.keep(f"{name}.backward", kept)
                gradients.watch(f"{name}.forward", list(recorder.parents), inputs, output)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def without_checks(self, stack: ExitStack) -> None:
        """Until the stack unwinds, calls of this thread are not checked: they are part of a second run."""
        before = self._leaf.depth
        self._leaf.depth = 1
        stack.callback(setattr, self._leaf, "depth", before)
