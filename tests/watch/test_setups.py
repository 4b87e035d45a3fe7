"""Ways to train that change when and where gradients are: each is untouched by the monitor, and watched correctly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import Monitor, TrainerMon
from msprobe.watch.reading.run import Run

EVERYTHING = {"targets": "all", "statistics": "all", "low_precision": "fp16", "alarms": {"underflow": False}}
STEPS = 5


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


def batches():
    data = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randn(6, 8, generator=data), torch.randint(4, (6,), generator=data)


def watch(model, optimizer, path, scaler=None):
    return Monitor(model, optimizer, {**EVERYTHING, "dump_path": str(path)}, scaler=scaler) if path else None


def curve(path, kind, name, statistic="norm"):
    run = Run(Path(path))
    found = run.ranks[0].curve(kind, name, statistic)[1]
    run.close()
    return found.tolist()


def compiled(path):
    torch.compiler.reset()  # other tests of this process may have used up the limit of recompilations
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    fast = torch.compile(model, backend="aot_eager")
    monitor = watch(fast, optimizer, path)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(fast(x), y)
        loss.backward()
        optimizer.step()
        if monitor:
            monitor.step(loss=loss)
    return model, monitor, [p.grad for p in model.parameters()]


def scaled(path, fused=False):
    """Half precision with a gradient scaler that the optimizer steps through."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = watch(model, optimizer, path, scaler)
    gradients = []
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        gradients = [p.grad / 1024 for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        if monitor:
            monitor.step(loss=loss)
    return model, monitor, gradients


def in_backward(path):
    """Each parameter has its optimizer, which steps and frees the gradient inside the backward pass."""
    model = make_model()
    optimizers = {p: torch.optim.AdamW([p], 1e-2) for p in model.parameters()}
    gradients = {}

    def step(parameter):
        gradients[parameter] = parameter.grad.clone()
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    monitor = watch(model, optimizers, path)
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if monitor:
            monitor.step(loss=loss)
    return model, monitor, [gradients[p] for p in model.parameters()]


def accumulated(path):
    """Two batches a step, and a sum of gradients."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = watch(model, optimizer, path)
    for x, y in batches():
        optimizer.zero_grad()
        for half in (slice(0, 3), slice(3, 6)):
            loss = F.cross_entropy(model(x[half]), y[half]) / 2
            loss.backward()
        optimizer.step()
        if monitor:
            monitor.step(loss=loss)
    return model, monitor, [p.grad for p in model.parameters()]


SETUPS = {
    "compiled": compiled,
    "scaled": scaled,
    "scaled, fused": lambda path: scaled(path, fused=True),
    "in backward": in_backward,
    "accumulated": accumulated,
}


@pytest.mark.parametrize("name", SETUPS)
def test_training_is_the_same_and_gradients_are_those_of_the_step(name, tmp_path):
    bare, _, expected = SETUPS[name](None)
    watched, monitor, _ = SETUPS[name](tmp_path)
    monitor.close()
    assert all(torch.equal(one, other) for one, other in zip(bare.parameters(), watched.parameters()))
    for (parameter, _), gradient in zip(bare.named_parameters(), expected):
        found = curve(tmp_path, "grad", parameter)
        assert len(found) == STEPS
        assert found[-1] == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert len(curve(tmp_path, "state.exp_avg", "0.weight")) == STEPS
    assert Run(tmp_path).alarms() == []


def test_modules_inside_a_compiled_region_are_said_to_be_invisible(tmp_path, logged):
    _, monitor, _ = compiled(tmp_path)
    monitor.close()
    assert logged("inside torch.compile")


class MasterOptimizer:
    """Steps float32 copies of the parameters, with gradients from `main_grad`, as Megatron does."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        for parameter in self.parameters:
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
            parameter.main_param = parameter.detach().float().clone().requires_grad_()
            parameter.register_post_accumulate_grad_hook(self.collect)
        self.optimizer = torch.optim.AdamW([p.main_param for p in self.parameters], 1e-2)

    @staticmethod
    def collect(parameter):
        parameter.main_grad += parameter.grad
        parameter.grad = None

    def step(self):
        for parameter in self.parameters:
            parameter.main_param.grad = parameter.main_grad
        self.optimizer.step()
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.copy_(parameter.main_param)


def master_run(config):
    model = make_model().bfloat16()
    optimizer = MasterOptimizer(model)
    monitor = None
    if config:
        monitor = TrainerMon(config, params_have_main_grad=True)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for x, y in batches():
        for parameter in model.parameters():
            parameter.main_grad.zero_()
        F.cross_entropy(model(x.bfloat16()), y).backward()
        optimizer.step()
    return model, monitor


def test_gradients_in_main_grad_are_watched(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    config = tmp_path / "monitor.json"
    config.write_text('{"wg_distribution": true, "mv_distribution": true, "param_distribution": true}')
    bare, _ = master_run(None)
    watched, monitor = master_run(str(config))
    monitor.close()
    assert all(torch.equal(one, other) for one, other in zip(bare.parameters(), watched.parameters()))
    folder = monitor.monitor.path
    for name, parameter in bare.named_parameters():
        found = curve(folder, "grad", name)
        assert len(found) == STEPS
        assert found[-1] == pytest.approx(float(parameter.main_grad.norm()), rel=1e-5)
        assert len(curve(folder, "state.exp_avg", name)) == STEPS


def test_the_step_of_another_optimizer_reads_no_gradients(tmp_path):
    model, other = make_model(), nn.Linear(4, 1)
    mine, its = torch.optim.SGD(model.parameters(), 1e-2), torch.optim.SGD(other.parameters(), 1e-2)
    monitor = watch(model, [mine, its], tmp_path)
    norms = []
    for x, _ in batches():
        mine.zero_grad()
        model(x).square().sum().backward()
        norms.append(float(model[0].weight.grad.norm()))
        mine.step()
        other(model(x)).sum().backward()  # adds to the gradients of the model too
        its.step()
        monitor.step()
    monitor.close()
    assert curve(tmp_path, "grad", "0.weight") == pytest.approx(norms, rel=1e-6)


@pytest.mark.parametrize("kind", [object, lambda: iter([1, 2]), lambda: None], ids=["object", "iterator", "none"])
def test_a_sharded_model_may_return_anything(tmp_path, logged, kind):
    class Odd(nn.Linear):
        def forward(self, x):
            self.seen = super().forward(x)
            return result

    model, result = Odd(8, 4), kind()
    monitor = watch(model, torch.optim.SGD(model.parameters(), 1e-2), tmp_path)
    monitor._uninstall()
    for one in monitor._parameters.all:
        one.shard = "0/2"
    monitor._prepare(0, False)
    assert model(torch.ones(2, 8)) is result
    assert kind is object or result is None or list(result) == [1, 2]
    monitor.close()
    assert not logged("the monitor is off")
