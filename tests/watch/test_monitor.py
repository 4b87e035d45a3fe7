"""The PyTorch monitor: it changes nothing, sees what it should, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.config.errors import ConfigError
from msprobe.pytorch import Monitor, PrecisionDebugger
from msprobe.pytorch.watch.tensors import Gauge, on_device
from msprobe.watch import gauge
from msprobe.watch.reading.run import Run
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Figures

EVERYTHING = {"targets": "all", "statistics": "all", "low_precision": "fp16", "alarms": {"underflow": False}}


class Net(nn.Module):
    def __init__(self, checkpointed=False, reentrant=False):
        super().__init__()
        self.tokens = nn.Embedding(32, 16, sparse=False)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, 32)
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def middle(self, x):
        return self.act(self.norm(self.conv(x)))

    def forward(self, x):
        x = self.tokens(x).transpose(1, 2)
        x = checkpoint(self.middle, x, use_reentrant=self.reentrant) if self.checkpointed else self.middle(x)
        return self.head(x.transpose(1, 2))


def train(
    path=None, config=None, steps=6, model=None, fused=False, accumulate=1, clip=None, scaler=None, make=None, factor=1
):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = (make or torch.optim.AdamW)(model.parameters(), 1e-2, **({"fused": True} if fused else {}))
    monitor = None
    if path is not None:
        monitor = Monitor(model, optimizer, {"dump_path": str(path), **(config or {})}, scaler=scaler)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            x = torch.randint(32, (4, 8))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten()) * factor
            (scaler.scale(loss) if scaler else loss).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        losses.append(loss.item().hex())
        if monitor is not None:
            monitor.step(loss=loss)
    if monitor is not None:
        monitor.close()
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def curve(path, kind, name, statistic="norm"):
    run = Run(Path(path))
    steps, values = run.ranks[0].curve(kind, name, statistic)
    run.close()
    return steps.tolist(), values


VARIANTS = {
    "plain": {},
    "fused": {"fused": True},
    "accumulated": {"accumulate": 3},
    "clipped": {"clip": 0.1},
    "momentum": {"make": lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_bit_identical_with_everything_on(variant, tmp_path):
    losses, weights = train(**VARIANTS[variant])
    watched_losses, watched = train(tmp_path, EVERYTHING, **VARIANTS[variant])
    assert watched_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(weights, watched))
    kinds = {one.target.kind for one in Run(tmp_path).ranks[0].series()}
    assert {"weight", "grad", "grad_local", "grad_before_clip", "update", "input", "output", "output_grad"} <= kinds


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_counts_a_module_once(reentrant, tmp_path):
    torch.manual_seed(1)
    losses, _ = train(model=Net(True, reentrant))
    torch.manual_seed(1)
    watched, _ = train(tmp_path / "a", EVERYTHING, model=Net(True, reentrant))
    torch.manual_seed(1)
    train(tmp_path / "b", EVERYTHING, model=Net())
    assert watched == losses
    for kind in ("output", "output_grad"):
        ours, plain = (curve(tmp_path / name, kind, "conv")[1] for name in "ab")
        assert ours.tolist() == plain.tolist()


def test_gradients_are_those_that_the_optimizer_uses(tmp_path):
    train(tmp_path, {"targets": ["grad", "grad_before_clip"]}, clip=0.01)
    names = [name for name, _ in Net().named_parameters()]
    after = sum(curve(tmp_path, "grad", name)[1] ** 2 for name in names) ** 0.5
    before = sum(curve(tmp_path, "grad_before_clip", name)[1] ** 2 for name in names) ** 0.5
    assert after == pytest.approx([0.01] * 6, rel=1e-3)
    assert (before > 0.1).all()


def test_an_update_is_the_change_of_the_weight(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(300, 200)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": ["update"]})
    before = model.weight.detach().clone()
    model(torch.randn(8, 300)).square().mean().backward()
    optimizer.step()
    monitor.step()
    monitor.close()
    ratio = float((model.weight.detach() - before).norm() / before.norm())
    assert curve(tmp_path, "update", "weight", "ratio")[1][0] == pytest.approx(ratio, rel=0.1)


def test_statistics_are_right(tmp_path):
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 0.0, 1e-9], [3.0, 1e6, float("inf"), 0.0]]))
    found = StepFigures(0)
    Gauge(gauge.bounds("fp16")).read(model.weight, found, 0)
    figures = found[0]
    assert (figures.max, figures.min, figures.inf, figures.zero) == (float("inf"), -2.0, 1, 0.25)
    assert (figures.underflow, figures.saturation) == (1 / 8, 2 / 8)
    on_card = Figures(*on_device(model.weight, gauge.bounds("fp16")).tolist())
    assert on_card[4:] == figures[4:]
    assert (on_card.max, on_card.min) == (figures.max, figures.min)


class Twice(nn.Module):
    """Calls `first` twice; `second` gets the result of the first of these calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        once = self.first(x)
        self.norms = [once.detach().norm().item(), 0.0]
        again = self.first(self.second(once))
        self.norms[1] = again.detach().norm().item()
        return again


def test_a_tensor_between_two_modules_has_its_own_figures(tmp_path):
    """It is measured once, as the output of `first`, whose row then gets a second call."""
    torch.manual_seed(0)
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": ["input", "output"]})
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    monitor.step()
    monitor.close()
    assert curve(tmp_path, "input", "second")[1][0] == pytest.approx(model.norms[0], rel=1e-5)
    both = (model.norms[0] ** 2 + model.norms[1] ** 2) ** 0.5
    assert curve(tmp_path, "output", "first")[1][0] == pytest.approx(both, rel=1e-5)


def test_state_that_a_checkpoint_replaced_is_read_anew(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": ["state", "update"]})
    norms = []
    for step in range(4):
        if step == 2:
            saved = optimizer.state_dict()
            for state in saved["state"].values():
                state["exp_avg"] = torch.full_like(state["exp_avg"], 100.0)
            optimizer.load_state_dict(saved)
            model.weight.data = model.weight.data.clone()  # other memory: the update is read there
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        norms.append((optimizer.state[model.weight]["exp_avg"].norm().item(), (model.weight - before).norm().item()))
        monitor.step()
    monitor.close()
    assert norms[2][0] > 100
    assert curve(tmp_path, "state.exp_avg", "weight")[1] == pytest.approx([state for state, _ in norms], rel=1e-5)
    assert curve(tmp_path, "update", "weight")[1] == pytest.approx([update for _, update in norms], rel=1e-4)


def test_a_scaler_that_skips_a_step_raises_no_alarm(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2000)
    train(tmp_path, {}, steps=30, scaler=scaler, factor=1e6)
    run = Run(tmp_path)
    assert run.alarms() == []
    scales = curve(tmp_path, "scalar", "scale", "value")[1]
    assert scales[-1] < scales[0]


def test_optimizers_inside_the_backward_pass_are_watched(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    monitor = Monitor(model, optimizers, {"dump_path": str(tmp_path)})
    for _ in range(3):
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        monitor.step(loss=loss)
    monitor.close()
    for name, _ in model.named_parameters():
        assert curve(tmp_path, "grad", name)[0] == [0, 1, 2]


def test_steps_names_and_ranks_can_be_chosen(tmp_path, monkeypatch):
    chosen = {"start": 2, "every": 3, "times": 2, "include": ["head.*", "conv*"], "exclude": ["*.bias"]}
    train(tmp_path / "steps", chosen, steps=12)
    run = Run(tmp_path / "steps")
    assert run.ranks[0].steps() == [2, 5]
    assert {one.target.name for one in run.ranks[0].series() if one.target.kind == "grad"} == {
        "head.weight",
        "conv.weight",
    }
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(tmp_path / "ranks", {"ranks": [0]})
    assert not (tmp_path / "ranks").exists()


def test_no_hook_is_left_after_close_and_between_watched_steps(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {**EVERYTHING, "dump_path": str(tmp_path), "every": 2})
    monitor.step()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    monitor.step()
    assert model.head._forward_hooks
    monitor.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_fault_of_ours_does_not_reach_the_script(tmp_path, logged):
    def broken(alarm):
        raise RuntimeError("a callback that fails")

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path)}, on_alarm=broken)
    monitor.step(loss=float("nan"))
    assert logged("a callback that fails")
    monitor.step(loss=1.0)


def test_an_alarm_starts_a_dump_and_calls_back(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    config = {"dump_path": str(tmp_path), "dump": {"steps": 2, "limit": 1, "level": "L0"}}
    alarms = []
    monitor = Monitor(model, optimizer, config, on_alarm=alarms.append)
    for step in range(8):
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=float("inf") if step in (3, 6) else loss)
    monitor.close()
    PrecisionDebugger._current._lifecycle.close()
    PrecisionDebugger._current = None
    assert [(alarm.step, alarm.rule) for alarm in alarms] == [(3, "nan"), (6, "nan")]
    assert sorted(path.name for path in (tmp_path / "dump_after_step3").glob("step*")) == ["step4", "step5"]
    assert not (tmp_path / "dump_after_step6").exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"target": ["grad"]}, "did you mean"),
        ({"targets": ["gradient"]}, "targets"),
        ({"every": 0}, "every"),
        ({"statistics": ["underflow"]}, "low_precision"),
        ({"alarms": {"spikes": 3}}, "alarms.spikes"),
        ({"writers": ["tensorbord"]}, "writers.tensorbord"),
        ({"dump": {"level": "L9"}}, "dump.level"),
        ({"max_megabytes": 0}, "max_megabytes"),
    ],
)
def test_a_wrong_key_is_one_clear_error(config, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        Monitor(nn.Linear(1, 1), None, {"dump_path": str(tmp_path), **config})
    assert list(tmp_path.iterdir()) == []


def test_live_tensorboard_files_are_read_by_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, {"writers": ["tensorboard"]})
    events = EventAccumulator(str(tmp_path / "tensorboard" / "rank"))
    events.Reload()
    assert [event.step for event in events.Scalars("grad/head.weight/norm")] == list(range(6))


def test_a_script_is_watched_without_editing_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.randn(2, 4)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    (tmp_path / "monitor.json").write_text(json.dumps({"dump_path": "here"}))
    for arguments, folder in ((["--watch"], "watch"), (["--watch", "monitor.json"], "here")):
        command = [sys.executable, "-m", "msprobe", "run", *arguments, "train.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert f"watched 3 steps: msprobe watch {folder}" in done.stderr
        assert curve(tmp_path / folder, "scalar", "loss", "value")[0] == [0, 1, 2]
        assert curve(tmp_path / folder, "grad", "weight")[0] == [0, 1, 2]
