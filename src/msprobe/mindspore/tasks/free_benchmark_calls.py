"""free_benchmark on MindSpore's dynamic graph: every wanted API is run a second time on changed input.

The second run is out of the training's sight: on copies where the call writes what it receives, without a
graph, with the random state put back. Collectives, compiled regions and calls whose random numbers cannot be
drawn again are never run twice, and named once. With `fix` the second answer takes the place of the first.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import Any, NamedTuple, Optional

from mindspore import ops
from mindspore._c_expression import TensorPy

from msprobe.collect import notices
from msprobe.collect.recorder import Recorder
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.executor import differentiating, no_grad, requires_grad, synchronize
from msprobe.mindspore.gradients.backward_graph import AVAILABLE, tensors_in
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.tasks.dry_runs import Held, has_no_double, key_of
from msprobe.mindspore.tasks.free_benchmark_gradients import FreeBenchmarkGradients, Kept, digests
from msprobe.mindspore.tasks.perturb import copy_of
from msprobe.mindspore.tasks.second_run import Random, Second
from msprobe.mindspore.tasks.side_effects import Effects, Watched, effects_of
from msprobe.tasks.free_benchmark import perturbation
from msprobe.tasks.free_benchmark.perturbation import TO_CPU, NotChanged, mapped
from msprobe.tasks.free_benchmark.second_run import Call

# Outputs that a kernel leaves as the memory was.
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
    """One call: what it received, and, where it may write that, copies from before."""

    api: Api
    func: Any
    args: Any
    kwargs: Any
    written: bool
    random: Optional[Random]
    custom: bool


class FreeBenchmarkApis(Apis):
    """Runs every wanted API, and runs it again."""

    def __init__(self, recorder: Recorder, gradients: Gradients, second: Second) -> None:
        super().__init__(recorder, gradients)
        assert isinstance(gradients, FreeBenchmarkGradients)
        gradients.apis = self
        self.second = second
        self._customs: set[str] = set()

    def record_custom(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        self._customs.add(api.title)
        return self.call(api, func, args, kwargs)

    def end(self) -> None:
        """The step ends: what could not be tried while a differentiation was open is tried now."""
        super().end()
        self._leaf.depth = 1
        second = self.second
        try:
            for held in second.rehearsals.take():
                if differentiating():
                    second.rehearsals.missed += 1
                    continue
                second.forward(held.call, held.again, lambda place=held.place: place)  # type: ignore[misc]
        except Exception:
            self._recorder.fault("free_benchmark", traceback.format_exc())
        finally:
            self._leaf.depth = 0
        if second.rehearsals.missed:
            notices.warn_once(
                f"free_benchmark: {second.rehearsals.missed} calls were not checked, because it was not yet known "
                "whether they run in raised precision; they are from the next step on."
            )

    def _wanted(self, api: Api, name: str) -> bool:
        selection = self._recorder.selection
        if selection.everything or selection.enter(f"{name}.forward", self._recorder.parents):
            return True
        place = _PLACES.get(api.title.partition(".")[0])
        if place is None:
            return False
        spelling = f"{place}.{api.name}.{name.rpartition('.')[2]}"
        return selection.enter_as(spelling) or selection.enter_as(spelling.partition(".")[2])

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder, run = self._recorder, self.second.run
        title = api.title
        name = f"{title}.{recorder.numbers.take(title)}"
        given = None
        try:
            if self._wanted(api, name):
                custom = title in self._customs
                effects = Effects(True, False, False, -1) if custom else effects_of(api, func, args, kwargs)
                if title.startswith("Jit."):
                    run.leave_out(title, "what runs inside it is not seen")
                elif api.collective or effects.collective:
                    run.leave_out(title, "a collective is never run a second time")
                elif self.second.first_float(args, kwargs) is not None:
                    given = self._given(api, func, args, kwargs, effects, custom)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        if given is None:
            return func(*args, **kwargs)
        watched = Watched(func) if given.custom else func
        if run.section.fuzz_stage == "backward":
            return self._held_for_backward(given, watched, args, kwargs, name)
        output = watched(*args, **kwargs)
        synchronize()  # an operator of the script's that fails does it here, and is not lost in what we read
        try:
            if self._may_run_again(given, watched):
                return self._checked(given, output, name)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _given(self, api: Api, func: Any, args: Any, kwargs: Any, effects: Effects, custom: bool) -> _Given:
        random = Random.now(custom) if effects.random else None
        if effects.writes and self.second.run.section.fuzz_stage == "forward":
            args, kwargs = mapped((args, kwargs), (TensorPy,), copy_of)
        return _Given(api, func, args, kwargs, effects.writes, random, custom)

    def _may_run_again(self, given: _Given, watched: Any) -> bool:
        """After the first run, which has shown what it does."""
        obstacle = ""
        if given.custom:
            obstacle = watched.obstacle()
        elif given.random is not None and not given.random.drawn():
            obstacle = "its random numbers cannot be drawn a second time"
            self.second.rehearsals.random = given.api.title
        if obstacle:
            self.second.run.leave_out(given.api.title, obstacle)
        return not obstacle

    def _checked(self, given: _Given, output: Any, name: str) -> Any:
        second, rehearsals = self.second, self.second.rehearsals
        title = given.api.title
        target = second.first_float(given.args, given.kwargs)
        first = tensors_in(output, [])
        if target is None or not first:
            return output
        unfilled = _UNFILLED.get(given.api.name, ())
        first = [None if index in unfilled else tensor for index, tensor in enumerate(first)]
        call = Call(
            name, second.dtype(target), str(target.dtype), tuple(target.shape), first, not isinstance(output, TensorPy)
        )
        modes = {second.mode, *((TO_CPU,) if second.run.section.if_preheat else ())}
        keys = {mode: key_of(mode, title, given.args, given.kwargs) for mode in modes}
        for mode, key in keys.items():
            if has_no_double(mode, title, call.dtype) and not rehearsals.failed(key):
                second.run.leave_out(title, "MindSpore has no float64 for it")
                rehearsals.refuse(key)
        if rehearsals.failed(keys[second.mode]):
            return output
        for key in keys.values():
            if not rehearsals.failed(key) and not rehearsals.trusts(key, not given.custom):
                self._rehearse(given, call, key)
                return output
        answers = second.forward(call, self._again(given, keys), lambda: second.stacks.number(6))
        return self._replaced(given, output, answers) if second.fixes and answers else output

    def _rehearse(self, given: _Given, call: Call, key: Any) -> None:
        second, rehearsals = self.second, self.second.rehearsals
        size = sum(tensor.nbytes for tensor in tensors_in((call.first, given.args, given.kwargs), []))
        if second.fixes:
            notices.warn_once(
                f"free_benchmark: {call.title} is replaced from the next step on; in this one it is tried in raised "
                "precision when the step has ended."
            )
        if not rehearsals.wants(key, size):
            return
        if not given.written:
            args, kwargs = mapped((given.args, given.kwargs), (TensorPy,), copy_of)
            given = given._replace(args=args, kwargs=kwargs)
        again = self._again(given, {key[0]: key})
        call = call._replace(first=[copy_of(tensor) for tensor in call.first])
        rehearsals.hold(Held(call, again, second.stacks.number(5)))

    def _again(self, given: _Given, keys: dict[str, Any]) -> Any:
        """`again(mode)` for the comparison: the tensors of a second run."""
        second, rehearsals = self.second, self.second.rehearsals
        several = given.written and second.run.section.if_preheat

        def again(mode: str) -> list[Any]:
            key = keys.get(mode) or key_of(mode, given.api.title, given.args, given.kwargs)
            if rehearsals.failed(key):
                raise NotChanged
            graph = second.fixes and not given.written and requires_grad()
            args, kwargs = given.args, given.kwargs
            with ExitStack() as stack:
                second.apart(given.random, stack)
                if not graph:
                    stack.enter_context(no_grad())
                if several:
                    args, kwargs = mapped((args, kwargs), (TensorPy,), copy_of)
                ways = second.raising_with_graph if graph else second.ways
                args, kwargs = perturbation.changed(mode, args, kwargs, ways)
                try:
                    tensors = tensors_in(given.func(*args, **kwargs), [])
                    for tensor in tensors:
                        tensor.asnumpy()  # what fails, fails here and not at the next call of the script's
                except Exception:
                    rehearsals.note(key, False)
                    raise
            rehearsals.note(key, True)
            return tensors

        return again

    def _replaced(self, given: _Given, output: Any, answers: Any) -> Any:
        """fix: the second answers in the first ones' dtype and place."""
        if given.written:
            self.second.run.leave_out(given.api.title, "what a call writes is not replaced; it was only compared")
            return output
        left = iter(answers)

        def put(value: Any) -> Any:
            answer = next(left)
            return answer if answer.dtype == value.dtype else ops.cast(answer, value.dtype)

        return mapped(output, (TensorPy,), put)

    def _held_for_backward(self, given: _Given, watched: Any, args: Any, kwargs: Any, name: str) -> Any:
        """The backward stage: the call is kept until its gradients come."""
        recorder, second, gradients = self._recorder, self.second, self._gradients
        kept = inputs = None
        try:
            if AVAILABLE and requires_grad() and not given.written:
                inputs = gradients.inputs(args, kwargs)
                if inputs.edges:
                    marks = digests(tensors_in((args, kwargs), []))
                    kept = Kept(given.func, args, kwargs, marks, given.random, second.stacks.number(3))
        except Exception:
            recorder.fault(name, traceback.format_exc())
        output = watched(*args, **kwargs)
        try:
            if kept is not None and inputs is not None and self._may_run_again(given, watched):
                assert isinstance(gradients, FreeBenchmarkGradients)
                gradients.keep(f"{name}.backward", kept)
                gradients.watch(f"{name}.forward", list(recorder.parents), inputs, output)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def quietly(self, stack: ExitStack) -> None:
        """Until the stack unwinds, calls of this thread are not checked: they are part of a second run."""
        before = self._leaf.depth
        self._leaf.depth = 1
        stack.callback(setattr, self._leaf, "depth", before)
