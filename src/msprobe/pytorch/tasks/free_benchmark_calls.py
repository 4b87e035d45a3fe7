"""free_benchmark on PyTorch: every wanted API is run a second time on changed input, and its answers compared.

The second run is out of the training's sight: on copies where the call writes what it receives, without a
graph, with the random state put back, and never for a collective. An API that cannot be run again is named
once. With `fix` the second answer, cast back, takes the place of the first.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from typing import Any, Optional

import torch

from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.gradients.backward_graph import Inputs, tensors_in
from msprobe.pytorch.tasks.free_benchmark_gradients import FreeBenchmarkGradients, Kept
from msprobe.pytorch.tasks.overflow_calls import writes
from msprobe.pytorch.tasks.perturb import changed, first_float, mapped
from msprobe.pytorch.tensors import accelerators
from msprobe.stats.scan import FORMATS
from msprobe.tasks.free_benchmark.perturbation import RAISING
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun
from msprobe.tasks.free_benchmark.second_run import Call, Flat, SecondRun, host_random, set_host_random

_SCANNED = {getattr(torch, name): code for name, code in FORMATS.items()}


class Second(SecondRun):
    """What PyTorch brings to the second run; shared by the forward and the backward stage."""

    def __init__(self, run: FreeBenchmarkRun, step: int, rank: int) -> None:
        super().__init__(run, step, rank)
        self._kinds = accelerators.device_kinds()

    def autocast(self) -> dict[str, Any]:
        """What autocasts here, by device, as far as the second run is to do the same."""
        if self.mode in RAISING or not torch._C._is_any_autocast_enabled():
            return {}
        kinds = ("cpu", *sorted(self._kinds))
        return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}

    def random_state(self, api: Api) -> Optional[list[Any]]:
        """What this API may draw from: nothing, the framework's generators, or in a user's function any."""
        if not (api.random or api.untracked):
            return None
        return [host_random() if api.untracked else None, *self._generators()]

    def _generators(self) -> list[Any]:
        return [torch.get_rng_state(), *(getattr(torch, kind).get_rng_state() for kind in sorted(self._kinds))]

    def _set_random(self, states: list[Any]) -> None:
        if states[0] is not None:
            set_host_random(states[0])
        torch.set_rng_state(states[1])
        for kind, state in zip(sorted(self._kinds), states[2:]):
            getattr(torch, kind).set_rng_state(state)

    def apart(self, random: Optional[list[Any]], stack: ExitStack) -> None:
        """Until the stack unwinds: the random numbers of the first run, no autocast that would undo what was raised."""
        if random is not None:
            after = [host_random() if random[0] is not None else None, *self._generators()]
            stack.callback(self._set_random, after)
            self._set_random(random)
        if self.mode in RAISING and torch._C._is_any_autocast_enabled():
            for kind in ("cpu", *sorted(self._kinds)):
                stack.enter_context(torch.autocast(kind, enabled=False))

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).partition(".")[2]

    def flat(self, tensor: Any) -> Flat:
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.cpu()
        if not tensor.is_floating_point():
            return Flat(tensor, 0, -1, tensor.numel())
        tensor = tensor.contiguous()
        tensor = tensor if tensor.dtype in _SCANNED else tensor.float()
        return Flat(tensor, tensor.data_ptr(), _SCANNED[tensor.dtype], tensor.numel())


class FreeBenchmarkApis(Apis):
    """Runs every wanted API, and runs it again."""

    def __init__(self, *parts: Any, second: Second) -> None:
        super().__init__(*parts)
        self.second = second

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        selection = recorder.selection
        title = f"{api.prefix}.{api.name}"
        name = f"{title}.{recorder.numbers.take(title)}"
        if not (selection.everything or selection.enter(f"{name}.forward", recorder.parents)):
            return func(*args, **kwargs)
        second = self.second
        if api.collective or second.run.section.fuzz_stage == "backward":
            if api.collective:
                second.run.leave_out(title, "a collective is never run a second time")
                return func(*args, **kwargs)
            return self._watched(api, func, args, kwargs, name)
        before: Any = None
        random = None
        try:
            random = second.random_state(api)
            if writes(api, args, kwargs) and first_float(args, kwargs) is not None:
                before = mapped((args, kwargs), _copy)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        output = func(*args, **kwargs)
        try:
            return self._checked(api, func, args, kwargs, output, name, before, random)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _checked(
        self, api: Api, func: Any, args: Any, kwargs: Any, output: Any, name: str, before: Any, random: Any
    ) -> Any:
        second = self.second
        given, named = before if before is not None else (args, kwargs)
        target = first_float(given, named)
        first = tensors_in(output, [])
        if target is None or not first:
            return output
        graph = second.fixes and before is None
        several = before is not None and second.run.section.if_preheat  # each second run writes what it receives

        def again(mode: str) -> list[Any]:
            args, kwargs = mapped((given, named), _copy) if several else (given, named)
            return tensors_in(self._again(func, args, kwargs, random, mode, graph and mode == second.mode), [])

        nested = not isinstance(output, torch.Tensor)
        call = Call(name, second.dtype(target), str(target.dtype), tuple(target.shape), first, nested)
        answers = second.forward(call, again, lambda: second.stacks.number(5))
        return _replaced(output, iter(answers), before is not None) if second.fixes and answers else output

    def _again(self, func: Any, args: Any, kwargs: Any, random: Any, mode: str, graph: bool) -> Any:
        with ExitStack() as stack:
            self.second.apart(random, stack)
            if not graph:
                stack.enter_context(torch.no_grad())
            new_args, new_kwargs = changed(mode, args, kwargs)
            return func(*new_args, **new_kwargs)

    def _watched(self, api: Api, func: Any, args: Any, kwargs: Any, name: str) -> Any:
        """The backward stage: the call is kept until its gradients come."""
        gradients, second = self._gradients, self.second
        inputs: Optional[Inputs] = None
        kept = None
        try:
            writing = not api.untracked and writes(api, args, kwargs)  # where it is not known, versions tell later
            if torch.is_grad_enabled() and not writing:
                inputs = Inputs(args, kwargs)
                if inputs.edges or inputs.leaves:
                    random = second.random_state(api)
                    tensors = tensors_in((args, kwargs), [])
                    versions = [(tensor, tensor._version) for tensor in tensors]
                    place = second.stacks.number(2)
                    kept = Kept(func, args, kwargs, versions, random, second.autocast(), place)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        output = func(*args, **kwargs)
        try:
            if kept is not None and inputs is not None:
                assert isinstance(gradients, FreeBenchmarkGradients)
                gradients.keep(f"{name}.backward", kept)
                gradients.watch(f"{name}.forward", list(self._recorder.parents), inputs, output)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        return output

    def open_opaque(self, api: Api, args: Any) -> Any:
        self.second.run.leave_out(api.title, "what runs inside it is not seen")
        return None


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _replaced(output: Any, answers: Any, written: bool) -> Any:
    """fix: the second answers in the first ones' dtype and place; a call that writes gets them written."""

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        answer = next(answers).to(value.device, value.dtype)
        if not written:
            return answer
        with torch.no_grad():
            value.copy_(answer)
        return value

    return mapped(output, put)
