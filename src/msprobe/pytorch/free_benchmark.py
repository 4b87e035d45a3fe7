"""free_benchmark on PyTorch: every wanted API is run a second time on changed input, and its answers compared.

The second run is out of the training's sight: on copies where the call writes what it receives, without a
graph, with the random state put back, and never for a collective. An API that cannot be run again is named
once. With `fix` the second answer, cast back, takes the place of the first.
"""

from __future__ import annotations

import math
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Callable, NamedTuple, Optional

import torch

from msprobe.collect.recorder import Recorder
from msprobe.collect.stacks import Stacks
from msprobe.tasks.free_benchmark import Difference, FreeBenchmarkRun, floor_of
from msprobe.tasks.looks import value_of
from msprobe.tasks.scan import FORMATS, ratio, scan
from msprobe.tasks.sources import source_line

from . import accelerators
from .api_table import Api
from .apis import Apis
from .gradients import Inputs, _Backward, tensors_in
from .held_gradients import HeldGradients
from .overflow import writes
from .perturb import NotChanged, changed, first_float, mapped

_SCANNED = {getattr(torch, name): code for name, code in FORMATS.items()}
_CPU = "to_cpu"


class Kept(NamedTuple):
    """A forward call, for the second run of its backward."""

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    versions: list[tuple[Any, int]]
    random: Optional[list[Any]]
    autocast: dict[str, Any]
    place: int


class Second:
    """Runs a call again and compares; shared by the forward and the backward stage."""

    def __init__(self, run: FreeBenchmarkRun, recorder: Recorder, step: int, rank: int) -> None:
        self.run = run
        self.mode = run.section.pert_mode
        self.step = step
        self.rank = rank
        self._recorder = recorder
        self._frames: dict[int, Any] = {}
        self.stacks = Stacks(self._frames.__setitem__)
        self._kinds = accelerators.device_kinds()

    def where(self, place: int) -> str:
        return source_line(self._frames[place]()) or "from a place that is not known"

    def autocast(self) -> dict[str, Any]:
        """What autocasts here, by device, as far as the second run is to do the same."""
        if self.mode in ("improve_precision", _CPU) or not torch._C._is_any_autocast_enabled():
            return {}
        kinds = ("cpu", *sorted(self._kinds))
        return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}

    def random_state(self) -> list[Any]:
        return [torch.get_rng_state(), *(getattr(torch, kind).get_rng_state() for kind in sorted(self._kinds))]

    def set_random_state(self, states: list[Any]) -> None:
        torch.set_rng_state(states[0])
        for kind, state in zip(sorted(self._kinds), states[1:]):
            getattr(torch, kind).set_rng_state(state)

    def apart(self, random: Optional[list[Any]], stack: ExitStack) -> None:
        """Until the stack unwinds: the random numbers of the first run, no autocast that would undo what was raised."""
        if random is not None:
            after = self.random_state()
            stack.callback(self.set_random_state, after)
            self.set_random_state(random)
        if self.mode in ("improve_precision", _CPU) and torch._C._is_any_autocast_enabled():
            for kind in ("cpu", *sorted(self._kinds)):
                stack.enter_context(torch.autocast(kind, enabled=False))

    def differences(self, first: list[Any], second: list[Any], nested: bool) -> list[Difference]:
        if len(first) != len(second):
            raise ValueError(f"it returned {len(second)} tensors the second time and {len(first)} the first")
        found = []
        for index, (one, other) in enumerate(zip(first, second)):
            if one is None or other is None:
                continue
            if one.shape != other.shape:
                raise ValueError("an output has another shape the second time")
            name = str(one.dtype).partition(".")[2]
            found.append(Difference(index if nested else None, name, *self._distance(one, other, name)))
        return found

    def _distance(self, one: Any, other: Any, name: str) -> tuple[float, int]:
        """The largest ratio of two tensors and how many elements are unequal."""
        if one.is_complex():
            one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        if not one.is_floating_point() or not other.is_floating_point():
            unequal = int((one.cpu() != other.cpu()).sum())
            return (math.inf if unequal else 1.0), unequal
        one, other = _plain(one), _plain(other)
        code = _SCANNED[one.dtype]
        top, _ = scan(one.data_ptr(), code, one.numel())
        floor = floor_of(name, self.mode, value_of(top, code))
        worst, flipped, unequal = ratio(
            one.data_ptr(), code, other.data_ptr(), _SCANNED[other.dtype], one.numel(), floor
        )
        return (math.inf if flipped else worst), unequal


def _plain(tensor: Any) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.dtype in _SCANNED else tensor.float()


class FreeBenchmarkApis(Apis):
    """Runs every wanted API, and runs it again."""

    second: Second

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
            random = second.random_state() if api.random or api.untracked else None
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
        second, run = self.second, self.second.run
        title = f"{api.prefix}.{api.name}"
        fixes = run.section.handler_type == "fix"
        given, named = before if before is not None else (args, kwargs)
        target = first_float(given, named)
        first = tensors_in(output, [])
        if target is None or not first:
            return output
        try:
            again = self._again(func, given, named, random, second.mode, fixes and before is None)
            answers = tensors_in(again, [])
            differences = second.differences(first, answers, not isinstance(output, torch.Tensor))
        except NotChanged:
            return output
        except Exception as error:
            run.leave_out(title, f"its second run failed, {type(error).__name__}: {_short(error)}")
            return output
        dtype = str(target.dtype)
        if run.wants_sample(title, dtype.partition(".")[2], second.step):
            self._sample(func, given, named, random, first, title, dtype.partition(".")[2], differences)
        where = ""
        if any(one.exceeds(run.limit(title, one.dtype)) for one in differences):
            where = second.where(second.stacks.number(3))
        run.judge(name, "forward", second.step, second.rank, dtype, tuple(target.shape), differences, where)
        return _replaced(output, iter(answers), before is not None) if fixes else output

    def _again(self, func: Any, args: Any, kwargs: Any, random: Any, mode: str, graph: bool) -> Any:
        with ExitStack() as stack:
            self.second.apart(random, stack)
            if not graph:
                stack.enter_context(torch.no_grad())
            new_args, new_kwargs = changed(mode, args, kwargs)
            return func(*new_args, **new_kwargs)

    def _sample(
        self, func: Any, args: Any, kwargs: Any, random: Any, first: list[Any], title: str, dtype: str, found: Any
    ) -> None:
        """Preheating: the same call on the CPU, in raised precision, says whether the first answer was right."""
        try:
            answers = tensors_in(self._again(func, args, kwargs, random, _CPU, False), [])
            right = self.second.differences(first, answers, True)
        except Exception as error:
            self.second.run.leave_out(title, f"it cannot be preheated on the CPU, {_short(error)}")
            return
        worst = max((one.ratio for one in found), default=1.0)
        self.second.run.preheat(title, dtype, worst, max((one.ratio for one in right), default=1.0))

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
                    random = second.random_state() if api.random or api.untracked else None
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


class FreeBenchmarkGradients(HeldGradients):
    """Compares the gradients of a call with those at the changed input."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._kept: dict[str, Kept] = {}
        self.second: Optional[Second] = None
        # A backward pass inside a hook of another one would take up the other's nodes: it has a thread of its own.
        self._thread: Optional[ThreadPoolExecutor] = None

    def keep(self, name: str, kept: Kept) -> None:
        self._kept[name] = kept

    def close(self) -> None:
        super().close()
        self._kept.clear()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        kept = self._kept.pop(record.name, None)
        second = self.second
        if kept is None or second is None or all(grad is None for grad in incoming):
            return
        name = record.name.rpartition(".")[0]
        title = name.rpartition(".")[0]
        target = first_float(kept.args, kept.kwargs)
        if target is None:
            return
        if any(tensor._version != version for tensor, version in kept.versions):
            second.run.leave_out(title, "what it received was changed before its gradient came")
            return
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "msprobe-free-benchmark")
            again = self._thread.submit(_gradients_again, second, kept, incoming).result()
            shared = set(record.shared)
            pairs = [(None, None) if position in shared else pair for position, pair in enumerate(zip(outgoing, again))]
            differences = second.differences([a for a, _ in pairs], [b for _, b in pairs], len(outgoing) > 1)
        except NotChanged:
            return
        except Exception as error:
            second.run.leave_out(title, f"its backward cannot be run again, {type(error).__name__}: {_short(error)}")
            return
        where = second.where(kept.place)
        shape = tuple(target.shape)
        second.run.judge(name, "backward", second.step, second.rank, str(target.dtype), shape, differences, where)


def _gradients_again(second: Second, kept: Kept, incoming: list[Any]) -> list[Any]:
    """The gradients of the arguments at the changed input, in argument order; None where there is none."""
    flags = [tensor.requires_grad for tensor, _ in kept.versions]
    with ExitStack() as stack:
        second.apart(kept.random, stack)
        for kind, dtype in kept.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype))
        args, kwargs = mapped((kept.args, kept.kwargs), _detached)
        with torch.no_grad():
            args, kwargs = changed(second.mode, args, kwargs)
        leaves: list[Any] = []

        def as_leaf(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            wanted = flags[len(leaves)]
            leaves.append(value.detach().requires_grad_(wanted and (value.is_floating_point() or value.is_complex())))
            return leaves[-1]

        args, kwargs = mapped((args, kwargs), as_leaf)
        with torch.enable_grad():
            outputs = tensors_in(kept.func(*args, **kwargs), [])
        pairs = [
            (out, grad.to(out.device, out.dtype))
            for out, grad in zip(outputs, incoming)
            if grad is not None and out.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs or not wanted:
            raise NotChanged
        made = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return [next(made) if leaf.requires_grad else None for leaf in leaves]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:160]


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
