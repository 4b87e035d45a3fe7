"""No exception of msprobe reaches training: each of its functions that runs during training raises once.

`test_one_guard.py` names the entries. This test finds them: it follows a run, and then trains again for each function
of msprobe that ran, which raises ZeroDivisionError at its first or at a later call.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Callable, Optional

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode
from torch.utils.checkpoint import checkpoint

import msprobe
from msprobe.collect.probe import Probe
from msprobe.pytorch import Monitor, PrecisionDebugger
from msprobe.pytorch.apis import mode_stack

pytestmark = pytest.mark.slow

OWN = str(Path(msprobe.__file__).parent) + os.sep
STEPS = 3
LATER = 7
"""Each function raises at its first call, and in a different run at this one."""
GUARDS = {
    "collect/guard.py": ("guarded", "run"),
    "pytorch/training/training_events.py": ("noted",),
    "watch/monitor.py": ("run", "step"),
}
"""The guards themselves."""
MODULES = ["Module.norm.LayerNorm.forward.0", "Module.last.Linear.forward.0"]
FORMATS = {"formats": ["nvfp4", "mxfp8"]}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "mix": {"task": "statistics", "level": "mix"},
    "tensor": {"task": "tensor", "level": "mix"},
    "L0": {"task": "statistics", "level": "L0"},
    "L2": {"task": "tensor", "level": "L2"},
    "formats": {"task": "statistics", "level": "mix", "precision": FORMATS, "statistics": {"scope": MODULES}},
    "list": {"task": "statistics", "level": "mix", "statistics": {"summary_mode": "md5", "list": ["linear", "norm*"]}},
    "overflow_check": {"task": "overflow_check", "level": "mix", "overflow_check": {"overflow_nums": -1}},
    "free_benchmark": {"task": "free_benchmark", "level": "L1", "free_benchmark": {"pert_mode": "bit_noise"}},
    "its backward": {
        "task": "free_benchmark",
        "level": "L1",
        "free_benchmark": {"pert_mode": "bit_noise", "fuzz_stage": "backward"},
    },
}
MONITOR = "monitor"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Marked(torch.Tensor):
    pass


class Net(nn.Module):
    """Calls of every kind: recomputed, in place, out=, that fail, that make tensors, on odd tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu_(self.first(x)))
        x = Doubled.apply(checkpoint(self.block, x, use_reentrant=False))
        with torch.no_grad():
            torch.add(x.detach(), 1, out=torch.empty_like(x))
            x.detach().data.mul_(1)
            torch.zeros(3)[1:].add_(torch.arange(2))
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()
            torch.eye(3).to_sparse() @ torch.ones(3, 1)
            torch.ones(2, dtype=torch.complex64).abs()
            torch.empty(2, device="meta") + 1
            (torch.randn(2).bfloat16().as_subclass(Marked) + 1).sum()
            torch.where(torch.ones(2) > 0, torch.ones(2), -torch.inf) * 2
            with pytest.raises(RuntimeError):
                torch.ones(2) @ torch.ones(3)
        return self.last(x)


Act = Callable[..., None]


def train(begin: Act, end: Act) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for batch in torch.randn(STEPS, 5, 4):
        begin(model, optimizer)
        loss = model(batch).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        end(loss)
        losses.append(loss.detach())
    return [*losses, *(parameter.detach().clone() for parameter in model.parameters())]


def train_with(kind: str, place: Path, trace: Act) -> list[torch.Tensor]:
    """Trains with the debugger or the monitor. `trace` follows every call from start() to step()."""
    place.mkdir()
    tools: list[Any] = []

    def begin(model: nn.Module, optimizer: Any) -> None:
        if not tools and kind == MONITOR:
            tools.append(Monitor(model, optimizer, {"dump_path": str(place), "targets": "all"}))
        elif not tools:
            config = place / "config.json"
            config.write_text(json.dumps({"dump_path": str(place / "dump"), **CONFIGURATIONS[kind]}))
            tools.append(PrecisionDebugger(config_path=str(config)))
        sys.settrace(trace)
        if kind != MONITOR:
            tools[0].start(model)

    def end(loss: torch.Tensor) -> None:
        sys.settrace(trace)
        if kind == MONITOR:
            tools[0].step(loss=loss)
        else:
            tools[0].save(loss, "loss")
            tools[0].stop()
            tools[0].step()
        sys.settrace(None)

    with cleared():
        try:
            return train(begin, end)
        finally:
            sys.settrace(None)
            if tools:
                tools[0].close() if kind == MONITOR else tools[0]._lifecycle.close()


@contextmanager
def cleared() -> Iterator[None]:
    """Afterwards takes away what a broken function has left installed."""
    probes: list[Probe] = []
    made = Probe.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "__init__", lambda self, hooks: (probes.append(self), made(self, hooks))[1])
        yield
    for probe in reversed(probes):
        if hasattr(probe, "hooks"):
            probe.remove()
    for mode in mode_stack.modes():
        mode_stack.take_off(mode)
    while _get_current_dispatch_mode_stack():
        _pop_mode()


class Raising:
    """Raises at one call of a function by msprobe. One that others call is an entry: nothing can be around it."""

    def __init__(self, code: CodeType, turn: int) -> None:
        self.code, self.turn = code, turn

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is self.code and is_ours(frame.f_back):
            self.turn -= 1
            if self.turn == 0:
                raise ZeroDivisionError(f"planted in {self.code.co_name}")


def is_ours(frame: Optional[FrameType]) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(OWN)


def functions_of(kind: str, place: Path) -> list[CodeType]:
    found: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_ours(frame) and is_ours(frame.f_back):
            found[frame.f_code] = None

    train_with(kind, place, note)
    return [code for code in found if code.co_name not in GUARDS.get(code.co_filename[len(OWN) :], ())]


def reaction(kind: str, place: Path, raising: Raising, bare: list[torch.Tensor]) -> Optional[str]:
    """What training noticed of the exception."""
    try:
        trained = train_with(kind, place, raising)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if all(torch.equal(*pair) for pair in zip(trained, bare)) else "different results"


@pytest.mark.parametrize("kind", [*CONFIGURATIONS, MONITOR])
def test_each_function_that_runs_may_raise(tmp_path: Path, kind: str) -> None:
    bare = train(lambda *_: None, lambda _: None)
    functions = functions_of(kind, tmp_path / "followed")
    assert len(functions) > 50
    noticed, raised = [], 0
    for number, code in enumerate(functions):
        for turn in (1, LATER):
            raising = Raising(code, turn)
            what = reaction(kind, tmp_path / f"{number}_{turn}", raising, bare)
            raised += raising.turn <= 0
            if what is not None:
                noticed.append(f"{code.co_filename[len(OWN) :]}:{code.co_firstlineno} {code.co_name}: {what}")
    assert raised > 50
    assert noticed == []
