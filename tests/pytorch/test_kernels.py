"""Level L2: ATen operators, forward and backward, under the API and the module that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import collecting, configured
from torch import nn
from torch.nn import functional as F

from msprobe.config.errors import ConfigError
from msprobe.pytorch import PrecisionDebugger


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.second(F.relu(self.norm(self.first(x))) * 2).transpose(0, 1)


def train(steps: int = 1, before: Any = None, **optimizer: Any) -> tuple[list[Any], Small]:
    torch.manual_seed(1)
    model = Small()
    adam = torch.optim.AdamW(model.parameters(), **optimizer)
    losses = []
    for _ in range(steps):
        if before is not None:
            before(model)
        adam.zero_grad()
        loss = model(torch.arange(12.0).reshape(3, 4)).square().mean()
        loss.backward()
        adam.step()
        losses.append(loss.detach())
    return losses, model


def test_names_directions_and_parents(tmp_path: Path):
    torch.manual_seed(1)
    model = Small()
    with collecting(tmp_path, model, level="L2") as dump:
        model(torch.ones(3, 4)).sum().backward()
    construct = dump.construct
    assert [name for name in construct if name.startswith("Aten.")] == dump.names
    assert construct["Aten.addmm.default.0.forward"] == "Functional.linear.0.forward"
    assert construct["Aten.native_layer_norm.default.0.forward"] == "Functional.layer_norm.0.forward"
    assert construct["Aten.mul.Tensor.0.forward"] == "Tensor.__mul__.0.forward"
    assert construct["Aten.native_layer_norm_backward.default.0.backward"] == "Functional.layer_norm.0.backward"
    assert construct["Aten.threshold_backward.default.0.backward"] == "Functional.relu.0.backward"
    seconds = [name for name, parent in construct.items() if parent == "Functional.linear.1.backward"]
    assert {name.split(".")[1] for name in seconds} == {"mm", "sum"}
    assert not any(".transpose." in name or ".t." in name or "detach" in name for name in dump.names)  # no kernel


def test_a_kernel_outside_of_any_api_has_its_module(tmp_path: Path):
    class Plain(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.full((3,), 2.0), x

    model = nn.Sequential(Plain())
    x = torch.ones(3)
    with collecting(tmp_path, model, level="L2") as dump:
        model(x)
    assert dump.construct == {
        "Module.0.Plain.forward.0": None,
        "Aten.full.default.0.forward": "Module.0.Plain.forward.0",
    }


def test_above_a_kernel_stand_its_api_and_every_module_around(tmp_path: Path):
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.LayerNorm(4))
    for number, dumped in enumerate((tmp_path / "all", tmp_path / "one")):
        options = {"section": {"list": ["Functional.linear.0.backward"]}} if number else {}
        with collecting(dumped, model, level="L2", **options) as dump:
            model(torch.ones(3, 4)).sum().backward()

        def above(name: str) -> list[str]:
            found = []
            while (parent := dump.construct[name]) is not None:
                found.append(name := parent)
            return found

        backward = ["Functional.linear.0.backward", "Module.0.0.Linear.backward.0", "Module.0.Sequential.backward.0"]
        assert above("Aten.mm.default.0.backward") == backward
        if not number:
            forward = ["Functional.linear.0.forward", "Module.0.0.Linear.forward.0", "Module.0.Sequential.forward.0"]
            assert above("Aten.addmm.default.0.forward") == forward
            assert all(name in dump.construct for name in dump.names)
    assert not any("layer_norm" in name or "relu" in name for name in dump.construct)  # nothing of theirs is recorded


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_training_is_the_same_to_the_last_bit_and_nothing_remembered_is_stale(
    tmp_path: Path, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MSPROBE_CHECK_CACHE", "1")
    bare, model = train(3, **options)
    debugger = PrecisionDebugger(configured(tmp_path, level="L2"))
    losses = []
    torch.manual_seed(1)
    other = Small()
    adam = torch.optim.AdamW(other.parameters(), **options)
    for _ in range(3):
        debugger.start(other)
        adam.zero_grad()
        loss = other(torch.arange(12.0).reshape(3, 4)).square().mean()
        loss.backward()
        adam.step()
        debugger.stop()
        debugger.step()
        losses.append(loss.detach())
    assert all(torch.equal(one, two) for one, two in zip(bare, losses))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))
    assert not list((tmp_path / "dump").rglob("dump_error_info.log"))
    assert torch._C._len_torch_dispatch_stack() == 0


def test_the_statistics_are_those_of_the_operator(tmp_path: Path):
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    with collecting(tmp_path, level="L2") as dump:
        y = torch.exp(x)
        y.backward(torch.tensor([1.0, 0.0, -2.0]))
    (forward,) = (dump[name] for name in dump.names if name.startswith("Aten.exp.default"))
    assert forward["input_args"][0]["Max"] == 3.0
    assert forward["output"][0]["Max"] == pytest.approx(float(torch.exp(torch.tensor(3.0))))
    (backward,) = (dump[name] for name in dump.names if name.startswith("Aten.mul.Tensor") and "backward" in name)
    assert backward["output"][0]["Min"] == pytest.approx(-2 * float(torch.exp(torch.tensor(3.0))))


def test_an_operator_that_writes_shows_the_value_before_and_after(tmp_path: Path):
    x = torch.ones(3)
    with collecting(tmp_path, level="L2") as dump:
        x.add_(1)
        x.mul_(5)
        torch.neg(x, out=x)
        x + 0
    added, multiplied, negated, plain = (dump[name] for name in dump.names)
    assert (added["input_args"][0]["Max"], added["output"][0]["Max"]) == (1.0, 2.0)
    assert (multiplied["input_args"][0]["Max"], multiplied["output"][0]["Max"]) == (2.0, 10.0)
    assert (negated["input_args"][0]["Max"], negated["output"][0]["Max"]) == (10.0, -10.0)
    assert plain["input_args"][0]["Max"] == -10.0


def test_tensors_are_saved(tmp_path: Path):
    x = torch.tensor([-1.0, 2.0])
    with collecting(tmp_path, level="L2", task="tensor") as dump:
        F.relu(x)
    directory = dump.directory / "dump_tensor_data"
    saved = torch.load(directory / "Aten.relu.default.0.forward.output.0.pt", weights_only=True)
    assert torch.equal(saved, torch.tensor([0.0, 2.0]))


@pytest.mark.parametrize("key", ["scope", "list"])
def test_one_api_name_means_its_kernels(tmp_path: Path, key: str):
    torch.manual_seed(1)
    model = Small()
    with collecting(tmp_path, model, level="L2", section={key: ["Functional.linear.1.backward"]}) as dump:
        model(torch.ones(3, 4)).sum().backward()
    assert {dump.construct[name] for name in dump.names} == {"Functional.linear.1.backward"}
    with collecting(tmp_path / "f", model, level="L2", section={key: ["Functional.linear.0.forward"]}) as dump:
        model(torch.ones(3, 4)).sum().backward()
    assert {name: dump.construct[name] for name in dump.names} == {
        "Aten.addmm.default.0.forward": "Functional.linear.0.forward"
    }


def test_data_mode_and_structure(tmp_path: Path):
    x = torch.ones(3, requires_grad=True)
    with collecting(tmp_path, level="L2", section={"data_mode": ["backward", "output"]}) as dump:
        torch.exp(x).sum().backward()
    assert dump.names
    assert all(name.endswith("backward") and set(record) == {"output"} for name, record in dump.data.items())
    with collecting(tmp_path / "s", level="L2", task="structure") as dump:
        torch.exp(x)
    assert dump.names == ["Aten.exp.default.0.forward"]


def test_recomputed_operators_are_forward(tmp_path: Path):
    x = torch.ones(3, requires_grad=True)
    with collecting(tmp_path, level="L2") as dump:
        torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
    assert [name for name in dump.names if name.startswith("Aten.exp")] == [
        "Aten.exp.default.0.forward",
        "Aten.exp.default.1.forward",
    ]


def test_an_operator_that_raises_keeps_its_own_error(tmp_path: Path):
    x = torch.ones(2, 3)
    with collecting(tmp_path, level="L2") as dump, pytest.raises(RuntimeError, match="shape"):
        torch.mm(x, x)
    (record,) = dump.data.values()
    assert record["raised"] == "RuntimeError"


@pytest.mark.parametrize("key", ["scope", "list"])
def test_the_backward_of_one_api_is_run_from_a_dumped_gradient(tmp_path: Path, key: str):
    def forward(x: Any, w: Any) -> Any:
        return (F.linear(x, w) * F.linear(x, w)).sum()

    x, w = torch.ones(2, 4), torch.arange(12.0).reshape(3, 4).requires_grad_()
    gradient = tmp_path / "Functional.linear.1.backward.input.0.pt"
    torch.save(torch.full((2, 3), 7.0), gradient)
    section = {key: ["Functional.linear.1.backward"], "backward_input": [str(gradient)]}
    state = torch.random.get_rng_state()
    with collecting(tmp_path / "d", level="L2", task="tensor", section=section) as dump:
        forward(x, w).backward()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(w.grad, torch.autograd.grad(forward(x, w), w)[0])
    assert {dump.construct[name] for name in dump.names} == {"Functional.linear.1.backward"}
    (product,) = (record for name, record in dump.data.items() if name.startswith("Aten.mm.default"))
    assert product["output"][0]["Max"] == 14.0  # 2 rows of ones times 7, whatever the script's gradient was


def test_a_backward_input_without_one_backward_api_is_refused(tmp_path: Path):
    gradient = tmp_path / "g.pt"
    torch.save(torch.ones(1), gradient)
    section = {"list": ["Functional.linear.1.forward"], "backward_input": [str(gradient)]}
    with pytest.raises(ConfigError, match="name exactly one backward call"):
        PrecisionDebugger(configured(tmp_path, level="L2", task="tensor", section=section))


def test_a_compiled_module_runs_as_compiled(tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    expected = compiled(torch.ones(2, 4))
    with collecting(tmp_path, level="L2") as dump:
        assert torch.equal(compiled(torch.ones(2, 4)), expected)
        torch.ones(2) + 1
    assert "Aten.addmm.default.0.forward" not in dump.names
    assert any(name.startswith("Aten.add.Tensor") for name in dump.names)


def test_overflow_check_has_no_kernel_level(tmp_path: Path):
    path = configured(tmp_path, level="L2", task="overflow_check")
    with pytest.raises(ValueError, match='"L2" with task "overflow_check" on PyTorch; allowed: "L0", "L1", "mix"'):
        PrecisionDebugger(path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{}", "dump: this section is missing"),
        ('{"dump": {"dump_path": "/no/such/place"}}', "this directory does not exist; create it first"),
        (
            '{"dump": {"dump_path": ".", "dump_mode": "both"}}',
            'dump.dump_mode: found "both"; allowed: "output"',
        ),
        (
            '{"dump": {"dump_path": ".", "dump_op_switch": "yes"}}',
            'dump.dump_op_switch: found "yes"; allowed: "on", "off"',
        ),
        ('{"dump": {"dump_path": ".", "dump_op_swich": "on"}}', 'unknown key; allowed: "dump_list"'),
    ],
)
def test_a_bad_acl_config_is_refused_when_the_debugger_is_made(tmp_path: Path, content: str, part: str):
    acl = tmp_path / "acl.json"
    acl.write_text(content)
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(configured(tmp_path, level="L2", acl_config=str(acl)))
    assert part in str(caught.value)
    assert "acl.json" in str(caught.value)


def test_acl_config_is_answered_with_the_way_that_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    acl = tmp_path / "acl.json"
    acl.write_text(json.dumps({"dump": {"dump_list": [], "dump_path": str(tmp_path), "dump_mode": "all"}}))
    caplog.set_level("INFO", logger="msprobe")
    with collecting(tmp_path, level="L2", acl_config=str(acl)) as dump:
        torch.ones(2) + 1
    assert dump.names
    assert "acl_config needs torch_npu, which is not installed: level L2 records ATen operators" in caplog.text
