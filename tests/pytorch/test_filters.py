"""scope, list, data_mode, tensor_list and the other keys that say what is written, on a real model."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from collecting import collecting
from torch import nn

from msprobe.pytorch import PrecisionDebugger


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return F.relu(self.second(F.gelu(self.first(x))))


def selected(tmp_path, level="L1", task="statistics", **section):
    model = Net()
    torch.manual_seed(0)
    with collecting(tmp_path, model, level=level, task=task, section=section) as dump:
        model(torch.randn(2, 3)).sum().backward()
    return dump


def test_a_list_of_parts_of_names(tmp_path):
    names = selected(tmp_path, list=["relu"]).names
    assert names == ["Functional.relu.0.forward", "Functional.relu.0.backward"]


def test_a_list_of_full_names_takes_exactly_these(tmp_path):
    names = selected(tmp_path, list=["Functional.linear.1.forward", "Functional.gelu.0.backward"]).names
    assert names == ["Functional.linear.1.forward", "Functional.gelu.0.backward"]


class Views(nn.Module):
    def forward(self, x):
        return x.permute(1, 0).permute(1, 0).relu().transpose(0, 1)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_naming_a_call_that_is_off_by_default_switches_it_on(tmp_path, level, caplog):
    """Seed 003's own example of list: Tensor.permute.1.forward."""
    model = Views()
    wanted = ["Tensor.permute.1.forward", "transpose"]
    with collecting(tmp_path, model, level=level, section={"list": wanted}) as dump:
        model(torch.randn(2, 3, requires_grad=True)).sum().backward()
    assert dump.names == [
        "Tensor.permute.1.forward",
        "Tensor.transpose.0.forward",
        "Tensor.transpose.0.backward",
    ]
    assert "matched no call" not in caplog.text


def test_naming_a_view_at_l2_records_it_and_no_other_view(tmp_path):
    model = Views()
    with collecting(tmp_path, model, level="L2", section={"list": ["Tensor.permute.1.forward"]}) as dump:
        model(torch.randn(2, 3))
    assert dump.names == ["Aten.permute.default.1.forward"]


def test_a_name_that_no_call_can_have_says_why(tmp_path, caplog):
    caplog.set_level("INFO", logger="msprobe")
    model = Net()
    wanted = ["Torch.conv2d.0.forward", "Tensor.frobnicate.0.forward", "Functional.relu.7.forward"]
    with collecting(tmp_path, model, section={"list": wanted}):
        model(torch.randn(2, 3))
    PrecisionDebugger._current._lifecycle.close()
    assert "'Torch.conv2d.0.forward' in scope/list matched no call: PyTorch calls it Functional.conv2d" in caplog.text
    assert "matched no call: this version of PyTorch has no Tensor.frobnicate." in caplog.text
    assert "'Functional.relu.7.forward' in scope/list matched no call: nothing was collected for it." in caplog.text


def test_a_module_in_the_list_takes_what_runs_inside_at_mix(tmp_path):
    dump = selected(tmp_path, level="mix", list=["Module.first.Linear.forward.0"])
    assert dump.names == ["Functional.linear.0.forward", "Module.first.Linear.forward.0"]
    dump = selected(tmp_path / "b", level="mix", list=["Module.second.Linear.backward.0"])
    assert set(dump.names) == {"Functional.linear.1.backward", "Module.second.Linear.backward.0"}


def test_a_scope_is_a_range_in_order_of_execution(tmp_path):
    dump = selected(tmp_path, scope=["Functional.gelu.0.forward", "Functional.relu.0.backward"])
    assert dump.names == [
        "Functional.gelu.0.forward",
        "Functional.linear.1.forward",
        "Functional.relu.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Functional.relu.0.backward",
    ]


def test_a_scope_of_modules_at_mix(tmp_path):
    scope = ["Module.first.Linear.forward.0", "Module.second.Linear.forward.0"]
    dump = selected(tmp_path, level="mix", scope=scope)
    assert dump.names == [
        "Functional.linear.0.forward",
        "Module.first.Linear.forward.0",
        "Functional.gelu.0.forward",
        "Functional.linear.1.forward",
        "Module.second.Linear.forward.0",
    ]
    assert selected(tmp_path / "b", level="L0", scope=scope).names == scope


def test_level_l0_has_the_modules_with_their_parameters_and_gradients_alone(tmp_path):
    dump = selected(tmp_path, level="L0")
    assert set(dump.names) == {
        f"Module.{name}.Linear.{kind}"
        for name in ("first", "second")
        for kind in ("forward.0", "backward.0", "parameters_grad")
    }
    assert set(dump["Module.first.Linear.forward.0"]["parameters"]) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("mode", "directions", "members"),
    [
        (["all"], {"forward", "backward"}, {"input_args", "input_kwargs", "output", "input"}),
        (["forward"], {"forward"}, {"input_args", "input_kwargs", "output"}),
        (["backward"], {"backward"}, {"input", "output"}),
        (["input"], {"forward", "backward"}, {"input_args", "input_kwargs", "input"}),
        (["output"], {"forward", "backward"}, {"output"}),
        (["forward", "backward"], {"forward", "backward"}, {"input_args", "input_kwargs", "output", "input"}),
        (["forward", "output"], {"forward"}, {"output"}),
        (["backward", "input"], {"backward"}, {"input"}),
    ],
)
def test_data_mode_has_two_axes(tmp_path, mode, directions, members):
    dump = selected(tmp_path, data_mode=mode)
    assert {name.rpartition(".")[2] for name in dump.names} == directions
    assert {member for record in dump.data.values() for member in record} == members


def test_tensor_list_saves_these_only(tmp_path):
    dump = selected(tmp_path, tensor_list=["relu"])
    files = sorted(path.name for path in (dump.directory / "dump_tensor_data").iterdir())
    assert files == [
        "Functional.relu.0.backward.input.0.pt",
        "Functional.relu.0.backward.output.0.pt",
        "Functional.relu.0.forward.input.0.pt",
        "Functional.relu.0.forward.output.0.pt",
    ]
    assert "Functional.linear.0.forward" in dump.names


def test_a_filter_that_matched_nothing_is_logged(tmp_path, logged):
    selected(tmp_path, list=["relu", "Functional.rleu.0.forward"])
    PrecisionDebugger._current._lifecycle.close()
    assert len(logged("'Functional.rleu.0.forward' in scope/list matched no call")) == 1


def test_files_of_the_tensor_task_hold_the_values(tmp_path):
    model, x = Net(), torch.randn(2, 3)
    with collecting(tmp_path, model, level="mix", task="tensor") as dump:
        out = model(x)
        out.sum().backward()

    def load(record):
        return torch.load(dump.directory / "dump_tensor_data" / record["data_name"], weights_only=True)

    assert torch.equal(load(dump["Module.first.Linear.forward.0"]["input_args"][0]), x)
    assert torch.equal(load(dump["Module.first.Linear.forward.0"]["parameters"]["weight"]), model.first.weight)
    assert torch.equal(load(dump["Module.first.Linear.parameters_grad"]["weight"][0]), model.first.weight.grad)
    assert torch.equal(load(dump["Functional.relu.0.forward"]["output"][0]), out)
    assert torch.equal(load(dump["Functional.linear.0.backward"]["output"][1]), model.first.weight.grad)
    names = {path.name for path in (dump.directory / "dump_tensor_data").iterdir()}
    assert "Module.first.Linear.forward.0.parameters.weight.pt" in names
    assert "Module.first.Linear.parameters_grad.weight.pt" in names


def test_structure_has_names_stacks_and_parents_and_no_data(tmp_path):
    dump = selected(tmp_path, level="mix", task="structure")
    assert all(not record for record in dump.data.values())
    assert dump.construct["Functional.linear.0.forward"] == "Module.first.Linear.forward.0"
    assert any("Functional.relu.0.forward" in names for names, _ in dump.stacks.values())


def test_extra_info_false_writes_neither_stacks_nor_parents(tmp_path):
    with collecting(tmp_path, Net(), level="mix", extra_info=False) as dump:
        torch.relu(torch.ones(1))
    assert dump.names == ["Torch.relu.0.forward"]
    assert not (dump.directory / "stack.json").exists()
    assert not (dump.directory / "construct.json").exists()


def test_the_heads_of_the_files(tmp_path):
    dump = selected(tmp_path, level="mix", task="tensor")
    head = json.loads((dump.directory / "dump.json").read_text())
    assert list(head) == ["task", "level", "framework", "dump_data_dir", "flow", "data"]
    assert (head["task"], head["level"], head["framework"]) == ("tensor", "mix", "pytorch")
    assert head["dump_data_dir"] == str(dump.directory / "dump_tensor_data")
    run = json.loads((dump.directory / "run.json").read_text())
    assert run["torch"] == torch.__version__


def test_a_tensor_list_that_matched_nothing_is_logged(tmp_path, logged):
    with collecting(tmp_path, section={"tensor_list": ["rleu"]}):
        torch.relu(torch.ones(2))
    PrecisionDebugger._current._lifecycle.close()
    assert len(logged("'rleu' in tensor_list matched no collected call")) == 1


def test_gradients_outside_of_a_scope_are_not_called_further_passes(tmp_path, logged):
    x = torch.ones(2, requires_grad=True)
    with collecting(tmp_path, section={"scope": ["Torch.never.0.forward", "Torch.tanh.0.forward"]}):
        torch.tanh(torch.relu(x)).sum().backward()
    assert not logged("further backward passes")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("Linear", {"Module.0.Linear", "Module.1.0.Linear"}),
        ("Module.1.Sequential", {"Module.1.0.Linear"}),
        ("Module.1.0.Linear", {"Module.1.0.Linear"}),
        ("Module.1.Sequential.forward.0", set()),
    ],
)
def test_gradients_of_parameters_belong_to_their_module(tmp_path, entry, expected):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 1), nn.ReLU()))
    with collecting(tmp_path, model, level="mix", section={"list": [entry]}) as dump:
        model(torch.ones(2, 3)).sum().backward()
    assert {name[: -len(".parameters_grad")] for name in dump.names if name.endswith(".parameters_grad")} == expected
