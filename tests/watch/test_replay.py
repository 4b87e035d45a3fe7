"""`replay`: a step is repeated. Corruption is found, and clean training is bit-identical and without alarms."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import torch
from torch import nn

from msprobe.config.errors import ConfigError
from msprobe.pytorch import Monitor
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.reading.run import Run

STEPS, BAD = 9, 6


class Flip(torch.autograd.Function):
    """Flips a bit of one element, in the forward or in the backward, if asked."""

    asked: Optional[str] = None

    @staticmethod
    def spoil(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        place = int(value.abs().argmax())
        value.view(-1)[place : place + 1].view(torch.int32).bitwise_xor_(1 << 20)
        Flip.asked = None  # once: a fault of the hardware does not repeat itself
        return value

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return Flip.spoil(value) if Flip.asked == "forward" else value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return Flip.spoil(gradient) if Flip.asked == "backward" else gradient.clone()


class Faulty(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return Flip.apply(value)  # type: ignore[no-any-return]


def make() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Linear(6, 16), nn.BatchNorm1d(16), Faulty(), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)]
    return nn.Sequential(*parts)


def train(
    model: nn.Module,
    path: Optional[Path],
    fault: Optional[str] = None,
    penalty: bool = False,
    replay: Any = {"every": 2},  # noqa: B006
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    passes: int = 1,
) -> tuple[list[torch.Tensor], list[Alarm]]:
    """The weights, buffers and random numbers after the training, and the alarms."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    alarms: list[Alarm] = []
    called = wrap(model)
    monitor = None
    if path is not None:
        config = {"dump_path": str(path), "targets": "all", "replay": replay}
        monitor = Monitor(called, optimizer, config, on_alarm=alarms.append)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            Flip.asked = fault if step == BAD and part == 0 else None
            loss = called(torch.randn(8, 6)).square().mean()
            if penalty:
                loss = loss + 0.01 * model[0].weight.square().sum()  # type: ignore[index,union-attr,operator]
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if monitor is not None:
            monitor.step(loss=loss)
    if monitor is not None:
        monitor.close()
    return [*model.state_dict().values(), torch.rand(4)], alarms


def numbers(path: Path) -> bytes:
    """Every number that the monitor has stored."""
    run = Run(path)
    try:
        found: bytes = run.ranks[0].table()[2].tobytes()
        return found
    finally:
        run.close()


@pytest.mark.parametrize("passes", [1, 2])
def test_training_is_bit_identical_and_a_clean_run_has_no_alarm(tmp_path: Path, passes: int) -> None:
    bare, _ = train(make(), None, passes=passes)
    replayed, alarms = train(make(), tmp_path / "watch", replay={"every": 1}, passes=passes)
    assert alarms == []
    assert all(torch.equal(one, other) for one, other in zip(bare, replayed))
    train(make(), tmp_path / "without", replay=False, passes=passes)
    assert numbers(tmp_path / "watch") == numbers(tmp_path / "without")


@pytest.mark.parametrize(
    ("fault", "targets"), [("forward", ["output/2"]), ("backward", ["grad/1.weight", "grad/1.bias"])]
)
def test_a_flipped_bit_is_named(tmp_path: Path, fault: str, targets: list[str]) -> None:
    _, alarms = train(make(), tmp_path / "watch", fault)
    (found,) = [one for one in alarms if one.rule == "corrupted"]
    assert found.step == BAD
    assert found.target in targets
    assert "the step itself was wrong" in found.sentence
    run = Run(tmp_path / "watch")
    assert "corrupted" in {one.rule for one in run.alarms()}
    run.close()


def test_a_bit_flipped_in_a_step_that_is_not_repeated_is_not_seen(tmp_path: Path) -> None:
    _, alarms = train(make(), tmp_path / "watch", "forward", replay={"every": 4})
    assert [one for one in alarms if one.rule == "corrupted"] == []


def test_a_penalty_outside_of_the_model_is_learnt_and_the_rest_is_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "msprobe"):
        _, alarms = train(make(), tmp_path / "watch", "backward", penalty=True)
    assert "does not compare the gradients of 1 of 6 parameters, such as 0.weight" in caplog.text
    assert [one.step for one in alarms if one.rule == "corrupted"] == [BAD]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 2), 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(value) * self.calls  # type: ignore[no-any-return]


class Breaking(Counting):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("once only")
        return self.inner(value)  # type: ignore[no-any-return]


def hooked() -> nn.Module:
    model = make()
    model.get_submodule("3").register_forward_hook(lambda *_: None)
    return model


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.inner, value.requires_grad_(), use_reentrant=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make_model", "wrap", "reason"),
    [
        (Counting, lambda model: model, "the output of the model does not repeat itself"),
        (hooked, lambda model: model, "3 has a hook of the script, which would run twice"),
        (Reentrant, lambda model: model, "inner.weight gets its gradient in a pass of its own"),
        (Breaking, lambda model: model, "the step cannot be repeated: ValueError: once only"),
        (make, torch.compile, "the model is compiled"),
    ],
    ids=["state", "hook", "reentrant checkpoint", "error", "compiled"],
)
def test_a_model_that_cannot_be_repeated_is_refused_with_a_reason(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make_model: Callable[[], nn.Module],
    wrap: Callable[[nn.Module], nn.Module],
    reason: str,
) -> None:
    def backend(model: nn.Module) -> Any:
        return wrap(model) if wrap is not torch.compile else torch.compile(model, backend="eager")

    with caplog.at_level(logging.WARNING, "msprobe"):
        _, alarms = train(make_model(), tmp_path / "watch", wrap=backend)
    assert f"replay is off: {reason}" in caplog.text
    assert [one for one in alarms if one.rule == "corrupted"] == []


@pytest.mark.parametrize("value", [3, {"every": 0}, {"evry": 5}, {"every": "x"}])
def test_a_wrong_setting_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match="replay"):
        Monitor(nn.Linear(2, 2), None, {"dump_path": str(tmp_path), "replay": value})


def test_distributed_data_parallel_is_repeated_on_its_rank(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrap = nn.parallel.DistributedDataParallel
        bare, _ = train(make(), None, wrap=wrap)
        replayed, _ = train(make(), tmp_path / "clean", wrap=wrap)
        assert all(torch.equal(one, other) for one, other in zip(bare, replayed))
        _, alarms = train(make(), tmp_path / "bad", "forward", wrap=wrap)
        assert [one.target for one in alarms if one.rule == "corrupted"] == ["output/2"]
    finally:
        torch.distributed.destroy_process_group()
