"""Every parameter and buffer before and after the step that changes it, whichever class does it."""

from __future__ import annotations

import copy
import gc
import json
import weakref

import pytest
import torch
from collecting import Dump, assert_same, collecting, configured
from torch import nn

from msprobe.dump.reader import open_dump
from msprobe.pytorch import PrecisionDebugger

LEVELS = ["L0", "L1", "mix"]
RATE = 0.1


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def updates(dump):
    path = dump.directory / "training.json"
    events = json.loads(path.read_text())["events"] if path.exists() else []
    return [event for event in events if event["event"] == "update"]


def by_hand(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
    for parameter in model.parameters():
        parameter.grad = None


def by_data(model):
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad.data, alpha=-RATE)
        parameter.grad.zero_()


class Duck:
    """An optimizer that is not one of torch."""

    def __init__(self, model):
        self.parameters = list(model.parameters())

    @torch.no_grad()
    def step(self):
        torch._foreach_add_(self.parameters, [p.grad for p in self.parameters], alpha=-RATE)


class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(RATE * parameter.grad)


def steps(make):
    def update(model):
        optimizer = make(model.parameters())
        optimizer.step()
        optimizer.zero_grad()

    return update


WAYS = {
    "hand": by_hand,
    "data": by_data,
    "duck": lambda model: Duck(model).step(),
    "own class": steps(Own),
    "sgd": steps(lambda p: torch.optim.SGD(p, RATE, foreach=False)),
    "foreach": steps(lambda p: torch.optim.SGD(p, RATE, foreach=True)),
    "fused": steps(lambda p: torch.optim.SGD(p, RATE, fused=True)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_update_is_recorded(tmp_path, way, level):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with collecting(tmp_path, model, level=level) as dump:
        model(torch.ones(2, 4)).square().sum().backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        WAYS[way](model)
    (event,) = updates(dump)
    found = event["parameters"]
    assert list(found) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert_same(found[name]["before"], before[name])
        assert_same(found[name]["after"], parameter)
        if level != "L0" or way not in ("hand", "data"):  # nothing sees when it was written, and the gradient is gone
            assert_same(found[name]["gradient"], gradients[name])
    assert "buffers" not in event


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_numbers_join_the_records_and_the_update(tmp_path, level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE, foreach=False)
    with collecting(tmp_path, model, level=level) as dump:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    weight = updates(dump)[0]["parameters"]["0.weight"]
    used = dump["Functional.linear.0.forward"]["input_args"][1]
    assert weight["before"]["value_id"] == used["value_id"]
    assert weight["before"]["memory"] == weight["after"]["memory"] == used["memory"]
    assert weight["after"]["value_id"] != used["value_id"]
    assert weight["gradient"]["memory"] == dump["Functional.linear.0.backward"]["output"][1]["memory"]
    written = [record["output"][0] for name, record in dump.data.items() if name.startswith("Tensor.add_.")]
    assert weight["after"] in written


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_is_the_clipped_one(tmp_path, level):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    with collecting(tmp_path, model, level=level) as dump:
        for _ in range(2):
            model(torch.ones(2, 4)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        gradient = model[0].weight.grad.clone()
        optimizer.step()
    assert_same(updates(dump)[0]["parameters"]["0.weight"]["gradient"], gradient)


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_is_that_of_all_micro_batches(tmp_path, level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with collecting(tmp_path, model, level=level) as dump:
        for tokens in ([1, 2, 3], [3, 4, 5]):
            model(torch.tensor(tokens)).square().mean().backward()
        expected = {name: one.grad.double().norm().item() for name, one in model.named_parameters()}
        optimizer.step()
    (event,) = updates(dump)
    found = {name: sides["gradient"]["Norm"] for name, sides in event["parameters"].items()}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_a_scaler_skips_updates_nothing(tmp_path, level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step, factor in enumerate((float("inf"), 1.0)):
        with collecting(tmp_path / str(step), model, level=level) as dump:
            scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert len(updates(dump)) == step


def test_what_did_not_change_has_the_same_value_after_it(tmp_path):
    model = net()
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    frozen = updates(dump)[0]["parameters"]["2.weight"]
    assert frozen["gradient"] is None
    assert frozen["after"] == frozen["before"]


def test_a_frozen_parameter_without_an_optimizer_is_no_update(tmp_path):
    model = net()
    model[2].requires_grad_(False)
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            model[0].bias -= 1.0
    assert list(updates(dump)[0]["parameters"]) == ["0.bias"]


@pytest.mark.parametrize("level", LEVELS)
def test_an_average_that_no_call_reads_is_recorded_after_the_step(tmp_path, level):
    model = net()
    average, idle = copy.deepcopy(model), copy.deepcopy(model)
    with collecting(tmp_path, [model, average, idle], level=level) as dump:
        model(torch.ones(2, 4)).square().sum().backward()
        Duck(model).step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
    found = updates(dump)[0]["parameters"]
    assert [name for name in found if not name.startswith("0.")] == [f"1.{name}" for name in model.state_dict()]
    for name, parameter in average.named_parameters():
        assert found[f"1.{name}"]["before"] is found[f"1.{name}"]["gradient"] is None
        assert_same(found[f"1.{name}"]["after"], parameter)


def test_without_a_model_parameters_have_the_names_of_their_places(tmp_path):
    weight, bias = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = torch.optim.SGD([weight, bias], RATE), torch.optim.SGD([("other", torch.ones(2))], RATE)
    with collecting(tmp_path, level="L1") as dump:
        (weight * bias).sum().backward()
        first.step()
        second.step()
    assert list(updates(dump)[0]["parameters"]) == ["group.0.0", "group.0.1", "other"]


def test_a_write_that_no_version_shows_is_found(tmp_path):
    """Optimizers in C++ write through a pointer."""
    model = net()
    alias = model[0].weight.detach().numpy()
    for level in LEVELS:
        with collecting(tmp_path / level, model, level=level) as dump:
            model(torch.ones(2, 4)).sum().backward()
            before = model[0].weight.clone()
            alias += 1.0
        ((name, weight),) = updates(dump)[0]["parameters"].items()
        assert name == "0.weight"
        assert_same(weight["before"], before)
        assert_same(weight["after"], model[0].weight)


@pytest.mark.parametrize("level", LEVELS)
def test_the_closure_of_an_optimizer_computes_its_gradient(tmp_path, level):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        seen.append(model[0].weight.grad.clone())
        return loss

    with collecting(tmp_path, model, level=level) as dump:
        optimizer.step(closure)
    assert_same(updates(dump)[0]["parameters"]["0.weight"]["gradient"], seen[0])


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)  # a new tensor
        return self.norm(x) * self.table * self.mask


@pytest.mark.parametrize("level", LEVELS)
def test_buffers_that_changed(tmp_path, level):
    model = Counting()
    before = copy.deepcopy(model.state_dict())
    with collecting(tmp_path, model, level=level) as dump:
        model(torch.randn(8, 4)).sum().backward()
    (event,) = updates(dump)
    assert event["parameters"] == {}
    assert set(event["buffers"]) == {"average", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    for name, found in event["buffers"].items():
        assert_same(found["before"], before[name])
        assert_same(found["after"], model.get_buffer(name))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", ["hand", "foreach"])
def test_files_and_checksums(tmp_path, level, way):
    model = net()
    before = model[0].weight.detach().clone()
    with collecting(tmp_path / "tensor", model, level=level, task="tensor") as dump:
        model(torch.ones(2, 4)).sum().backward()
        gradient = model[0].weight.grad.clone()
        WAYS[way](model)
    weight = updates(dump)[0]["parameters"]["0.weight"]
    rank = open_dump(tmp_path / "tensor" / "dump").ranks[0]
    expected = {"before": before, "gradient": gradient, "after": model[0].weight.detach()}
    if level == "L0" and way == "hand":
        assert weight.pop("gradient") is None
        del expected["gradient"]
    for which, tensor in expected.items():
        assert weight[which]["data_name"] == f"update.0.weight.{which}.pt"
        assert torch.equal(torch.from_numpy(rank.tensor(weight[which]["data_name"]).copy()), tensor)
    with collecting(tmp_path / "md5", model, level=level, section={"summary_mode": "md5"}) as dump:
        model(torch.ones(2, 4)).sum().backward()
        WAYS[way](model)
    weight = updates(dump)[0]["parameters"]["0.weight"]
    assert weight["before"]["md5"] != weight["after"]["md5"]


@pytest.mark.parametrize("way", ["hand", "foreach"])
@pytest.mark.parametrize(
    ("task", "section"),
    [
        ("tensor", {"data_mode": ["forward"]}),
        ("tensor", {"data_mode": ["backward"]}),
        ("tensor", {"data_mode": ["input"]}),
        ("tensor", {"data_mode": ["output"]}),
        ("statistics", {"tensor_list": ["weight"]}),
    ],
)
def test_a_filter_leaves_out_the_files_and_keeps_the_numbers(tmp_path, way, task, section):
    model = net()
    with collecting(tmp_path, model, level="mix", task=task, section=section) as dump:
        model(torch.ones(2, 4)).sum().backward()
        WAYS[way](model)
    weight = updates(dump)[0]["parameters"]["0.weight"]
    assert_same(weight["after"], model[0].weight)
    assert not list(tmp_path.rglob("update.*"))


def test_no_update_no_event(tmp_path):
    model = net()
    with collecting(tmp_path / "forward", model, level="mix") as dump:
        model(torch.ones(2, 4))
    assert not updates(dump)
    with collecting(tmp_path / "backward", model, level="mix") as dump:
        model(torch.ones(2, 4)).sum().backward()
    assert not updates(dump)
    with collecting(tmp_path / "structure", model, level="mix", task="structure") as dump:
        model(torch.ones(2, 4)).sum().backward()
        by_hand(model)
    assert not updates(dump)


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_of_the_update_lives_longer_than_the_step(tmp_path, level):
    model = net()
    debugger = PrecisionDebugger(configured(tmp_path, level=level, step=[0]))
    debugger.start(model)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), RATE).step()
    debugger.stop()
    debugger.step()
    references = [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    gc.collect()
    assert not any(reference() is not None for reference in references)
    assert updates(Dump(tmp_path / "dump"))


def test_two_intervals_of_one_step_have_an_event_each(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    for _ in range(2):
        debugger.start(model)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        debugger.stop()
    debugger.step()
    first, second = updates(Dump(tmp_path / "dump"))
    weights = [event["parameters"]["0.weight"] for event in (first, second)]
    assert weights[0]["after"]["Norm"] == weights[1]["before"]["Norm"]
