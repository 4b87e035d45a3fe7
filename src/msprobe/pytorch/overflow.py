"""overflow_check on PyTorch: the eyes, and the places where a call and a gradient are looked at.

Forward calls are looked at by their outputs alone; what a call received is looked at only when its output
is bad, or beforehand where the call may write it. Gradients are read where the statistics read them.
"""

from __future__ import annotations

import struct
import traceback
from typing import Any, Optional
from weakref import ref

import torch

from msprobe.collect.names import backward_of
from msprobe.stats import STATS, measure
from msprobe.tasks import overflow as rules
from msprobe.tasks.overflow import FINITE, INFINITE, NAN, OverflowRecorder, OverflowRun
from msprobe.tasks.ranges import Ranges
from msprobe.tasks.scan import FORMATS, NEAR, TOP, scan

from . import unusual
from .api_table import Api
from .apis import Apis, _recomputed
from .gradients import Inputs, _Backward, tensors_in
from .held_gradients import HeldGradients
from .modules import Modules
from .tensors import CODES, TensorTexts

_SIMPLE = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})
_NoTorchFunction = torch._C.DisableTorchFunction
_SCANNED = {getattr(torch, name): code for name, code in FORMATS.items()}
_SCANNED.update({torch.complex64: FORMATS["float32"], torch.complex128: FORMATS["float64"]})
_WIDE = frozenset({torch.complex64, torch.complex128})
_HALVES = frozenset({torch.float16, torch.bfloat16})
_UNPACK = {FORMATS["float32"]: ("<I", "<f"), FORMATS["float64"]: ("<Q", "<d"), FORMATS["float16"]: ("<H", "<e")}
# What an in-place call overwrites is copied for a replay up to so many bytes. An optimizer overwrites the whole
# model several times a step: without gradients only little is kept.
_KEPT, _KEPT_WITHOUT_GRADIENTS = 64 << 20, 64 << 10
# Looked at beforehand although their names do not say that they write: running statistics.
_WRITING = frozenset({"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"})


class TorchEyes:
    """A look at a tensor: one pass over its bits where it lies in host memory."""

    def __init__(self, texts: TensorTexts) -> None:
        self._texts = texts

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        found: list[Any] = []
        for value in args:
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif type(value) not in _SIMPLE:
                tensors_in(value, found)
        return tensors_in(kwargs, found) if kwargs else found

    def look(self, tensor: Any, ranges: Optional[Ranges] = None, title: str = "") -> int:
        dtype = tensor.dtype
        if not (dtype.is_floating_point or dtype.is_complex):
            return FINITE
        code = _SCANNED.get(dtype)
        try:
            if code is not None and tensor.is_cpu and tensor.is_contiguous():
                pointer = tensor.data_ptr()
                count = tensor.numel()
                if pointer or not count:
                    return self._scanned(pointer, code, count, dtype, ranges, title)
        except RuntimeError:  # a wrapper without memory of its own
            pass
        return self._measured(tensor)

    def _scanned(self, pointer: int, code: int, count: int, dtype: Any, ranges: Optional[Ranges], title: str) -> int:
        top, tiny = scan(pointer, code, 2 * count if dtype in _WIDE else count)
        if top >= TOP[code]:
            return INFINITE if top == TOP[code] else NAN
        if ranges is not None:
            if top >= NEAR[code]:
                ranges.near(title, str(dtype), _value(top, code))
            if tiny and dtype in _HALVES:
                ranges.tiny(title, str(dtype), tiny / count)
        return FINITE

    def _measured(self, tensor: Any) -> int:
        """Strided, on another device, of another kind: the statistics' way."""
        plain = tensor
        if not tensor.is_cpu or tensor.layout is not torch.strided or type(tensor) not in TensorTexts.tensor_types:
            found, _, _ = unusual.as_plain(tensor)
            if found is None:
                return FINITE
            plain = found
        code = CODES.get(plain.dtype)
        if code is None:
            return FINITE
        with torch.no_grad(), unusual.without_modes():
            plain = plain.detach().resolve_conj().resolve_neg()
        stats = measure(plain.data_ptr(), code, plain.shape, plain.stride(), STATS)
        return NAN if stats.nan else INFINITE if stats.posinf or stats.neginf else FINITE

    def version(self, tensor: Any) -> int:
        try:
            return int(tensor._version)
        except RuntimeError:  # an inference tensor keeps no count
            return 0

    def versions(self, tensors: list[Any]) -> list[tuple[Any, int]]:
        try:
            return [(tensor, tensor._version) for tensor in tensors]
        except RuntimeError:
            return [(tensor, self.version(tensor)) for tensor in tensors]

    def copy(self, tensor: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            with unusual.without_modes():
                return tensor.detach().clone()
        return tensor.detach().clone()

    def size(self, tensor: Any) -> int:
        return int(tensor.numel()) * int(tensor.element_size())

    def fresh(self) -> None:
        self._texts.forget()

    def circumstances(self) -> str:
        if not torch._C._is_any_autocast_enabled():
            return ""
        kinds = [kind for kind in ("cpu", "cuda", "npu") if _autocasts(kind)]
        members = ", ".join(f'"{kind}": "{torch.get_autocast_dtype(kind)}"' for kind in kinds)
        return f'"autocast": {{{members}}}' if kinds else ""


def _autocasts(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except RuntimeError:  # no such device in this build
        return False


def _value(bits: int, code: int) -> float:
    if code == FORMATS["bfloat16"]:
        bits, code = bits << 16, FORMATS["float32"]
    as_bits, as_float = _UNPACK[code]
    return float(struct.unpack(as_float, struct.pack(as_bits, bits))[0])


class OverflowApis(Apis):
    """Looks at what every API returns."""

    _recorder: OverflowRecorder

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        name = f"{api.prefix}.{api.name}.{recorder.numbers.take(f'{api.prefix}.{api.name}')}.forward"
        parents = recorder.parents
        call: Optional[int] = None
        inputs: Optional[Inputs] = None
        try:
            writes = _writes(api, args, kwargs)
            call = recorder.begin(
                name,
                parents[-1] if parents else None,
                args,
                kwargs,
                2,
                writes=writes,
                written=args[:1] if writes and _writes_first(api, args, kwargs) else (),
                keeps=_KEPT if torch.is_grad_enabled() else _KEPT_WITHOUT_GRADIENTS,
                random=torch.get_rng_state() if api.random else None,
            )
            if torch.is_grad_enabled():
                inputs = Inputs(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                recorder.fail(call, error)
            raise
        try:
            if inputs is not None and call is not None:
                self._gradients.watch(name, list(parents), inputs, output)
                assert isinstance(self._gradients, OverflowGradients)
                self._gradients.remember(name, recorder.stack_of(call), args, kwargs)
            if call is not None:
                if api.collective:
                    self._collectives.leave(api.name, call, name, args, kwargs, output)
                else:
                    recorder.leave(call, name, output, _recomputed(self._gradients))
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output


def _writes(api: Api, args: Any, kwargs: Any) -> bool:
    if api.inplace or api.untracked or api.name in _WRITING or "out" in kwargs:
        return True
    if api.inplace_at < 0:
        return False
    return bool(args[api.inplace_at] if len(args) > api.inplace_at else kwargs.get("inplace", False))


def _writes_first(api: Api, args: Any, kwargs: Any) -> bool:
    plain = api.inplace or (api.inplace_at >= 0 and not api.untracked)
    return plain and "out" not in kwargs and bool(args) and isinstance(args[0], torch.Tensor)


class OverflowModules(Modules):
    """Looks at what every module returns; its parameters are part of what it was given."""

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        recorder = self._recorder
        assert isinstance(recorder, OverflowRecorder)
        recorder.beside([p for p in module._parameters.values() if p is not None])
        return extra


class _Weakly:
    """The arguments of a forward call, for a backward that overflows: tensors weakly, with their versions."""

    __slots__ = ("args", "kwargs", "stack")

    def __init__(self, stack: Optional[int], args: Any, kwargs: Any) -> None:
        self.stack = stack
        self.args = [_weak(value) for value in args]
        self.kwargs = {key: _weak(value) for key, value in kwargs.items()} if kwargs else {}


class _Ref:
    __slots__ = ("dtype", "requires_grad", "shape", "tensor", "version")

    def __init__(self, tensor: Any) -> None:
        self.tensor = ref(tensor)
        self.version = tensor._version
        self.shape, self.dtype, self.requires_grad = tensor.shape, tensor.dtype, tensor.requires_grad


def _weak(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else _Ref(value)
    if type(value) in (list, tuple):
        return type(value)(_weak(member) for member in value)
    return value


def _strong(value: Any) -> tuple[Any, bool]:
    """The value, and whether every tensor of it is still what it was: ones stand in for one that is gone.

    Autograd keeps what a gradient depends on, or the output instead: mostly the ones do not matter.
    """
    if isinstance(value, _Ref):
        tensor = value.tensor()
        whole = tensor is not None and tensor._version == value.version
        if whole:
            return tensor, True
        ones = torch.ones(value.shape, dtype=value.dtype)
        return ones.requires_grad_(value.requires_grad), False
    if type(value) in (list, tuple):
        members = [_strong(member) for member in value]
        return type(value)(member for member, _ in members), all(whole for _, whole in members)
    return value, True


class OverflowGradients(HeldGradients):
    """Looks at the gradients of one call when all have come."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder) -> None:
        super().__init__(recorder)
        self._received: dict[str, _Weakly] = {}
        self._roles: dict[str, str] = {}

    def remember(self, name: str, stack: Optional[int], args: Any, kwargs: Any) -> None:
        self._received[backward_of(name)] = _Weakly(stack, args, kwargs)

    def _take_incoming(self, record: _Backward, places: Any, grads: Any) -> None:
        super()._take_incoming(record, places, grads)
        if not record.remaining:  # its inputs need no gradient: only its parameters will show a bad one
            recorder = self._recorder
            bad = (recorder.eyes.look(grad) != FINITE for grad in (grads[n] for _, n in places) if grad is not None)
            recorder.met_bad = recorder.met_bad or any(bad)

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        recorder = self._recorder
        forward = self._received.pop(record.name, None)
        eyes = recorder.eyes
        found = FINITE
        for grad in outgoing:
            if grad is not None:
                found = max(found, eyes.look(grad, recorder.run.ranges, record.name))
        if found == FINITE:
            return
        given = max((eyes.look(grad) for grad in incoming if grad is not None), default=FINITE)
        role = recorder.judge_gradients(_forward_of(record.name), given, found)
        if role is None:
            return
        eyes.fresh()
        members = [
            f'"input": {recorder.values.sequence(incoming, f"{record.name}.input")}',
            f'"output": {recorder.values.sequence(outgoing, f"{record.name}.output")}',
            f'"overflow": "{role}"',
        ]
        if record.shared:
            members.append(f'"shared_gradient": {record.shared}')
        stack = None
        if forward is not None:
            stack = forward.stack
            if role == rules.PRODUCER:
                members += self._forward_members(record.name, forward)
        recorder.keep(record.name, record.parent, stack, ", ".join(members), found, role, back=True)

    def _forward_members(self, name: str, forward: _Weakly) -> list[str]:
        """What the forward call received, where autograd has kept it: a replay runs it again."""
        values = self._recorder.values
        parts = [_strong(value) for value in forward.args]
        named = {key: _strong(value) for key, value in forward.kwargs.items()}
        members = [
            f'"forward_args": {values.sequence([value for value, _ in parts], f"{name}.forward_input")}',
            f'"forward_kwargs": {values.mapping({k: v for k, (v, _) in named.items()}, f"{name}.forward_input")}',
        ]
        if not all(whole for _, whole in (*parts, *named.values())):
            members.append('"forward_inputs_gone": true')
        around = self._recorder.eyes.circumstances()
        return [*members, around] if around else members

    def watch_parameter(self, module: str, name: str, parameter: Any) -> None:
        record = f"{module}.parameters_grad"
        self._parameters.setdefault(record, {})

        def hook(gradient: Any) -> None:
            recorder = self._recorder
            if recorder.closed:
                return
            try:
                with _NoTorchFunction():
                    found = recorder.eyes.look(gradient)
                    if found == FINITE:
                        return
                    role = self._roles.setdefault(record, recorder.late_role())
                    recorder.eyes.fresh()
                    text = recorder.values.value(gradient, f"{record}.{name}")
                    self._parameters[record][name] = f'"{name}": [{text}]'
                    members = ", ".join([*self._parameters[record].values(), f'"overflow": "{role}"'])
                    recorder.keep(record, None, None, members, found, role, back=True)
            except Exception:
                recorder.fault(record, traceback.format_exc())

        self._watched.append((parameter, hook, parameter.register_hook(hook)))

    def close(self) -> None:
        super().close()
        self._received.clear()
        self._recorder.forget_dead()


def _forward_of(name: str) -> str:
    head, _, last = name.rpartition(".")
    if last == "backward":
        return f"{head}.forward"
    stem, _, direction = head.rpartition(".")
    return f"{stem}.forward.{last}" if direction == "backward" else name


class ScalerWatch:
    """Knows while a step is open whether its loss was scaled, and which optimizer steps a GradScaler skipped."""

    def __init__(self, recorder: OverflowRecorder, run: OverflowRun) -> None:
        self._recorder = recorder
        self._run = run
        self._originals: Optional[tuple[Any, Any]] = None

    def install(self) -> None:
        if self._originals is not None:
            return
        kind = torch.amp.GradScaler
        scale, update = self._originals = (kind.scale, kind.update)
        recorder, run = self._recorder, self._run

        def watched_scale(scaler: Any, outputs: Any) -> Any:
            if scaler.is_enabled():
                recorder.under_scaler = True
            return scale(scaler, outputs)

        def watched_update(scaler: Any, new_scale: Any = None) -> Any:
            run.skipped_steps += _skipped(scaler)
            return update(scaler, new_scale)

        kind.scale, kind.update = watched_scale, watched_update

    def remove(self) -> None:
        if self._originals is not None:
            torch.amp.GradScaler.scale, torch.amp.GradScaler.update = self._originals
            self._originals = None


def _skipped(scaler: Any) -> int:
    with _NoTorchFunction():
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        return sum(any(float(one) for one in state["found_inf_per_device"].values()) for state in states)
