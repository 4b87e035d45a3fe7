"""Answers of compare that name more than a call: buffers, modules in another's place, gradients, masks, precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted
import pytest
import torch
import torch.nn.functional as F
from test_cases import Model, compared
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger


class Scaled(nn.Module):
    """Uses a view of a buffer, and of a parameter."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 16) + (0.125 if wrong else 0.0))
        self.first = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale[None, :].expand(8, -1)
        return torch.cat([self.first.expand(8, -1, -1), x[:, None]], dim=1).sum(1)


@pytest.mark.parametrize("level", ["mix", "L1", "L0"])
def test_a_buffer_is_named(tmp_path: Path, level: str) -> None:
    result = compared(tmp_path, lambda wrong: nn.Sequential(Scaled(wrong), nn.Linear(16, 4)), level=level)
    assert result.origin is not None
    assert result.origin.kind == "buffer"
    assert "buffer 0.scale differs before anything ran" in result.origin.sentence


def test_a_buffer_that_nothing_uses_is_a_note(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        model.register_buffer("unused", torch.full((3,), float(wrong)))
        return model

    result = compared(tmp_path, build)
    assert result.verdict == "same"
    assert any("buffer unused differs" in note for note in result.notes)


def test_a_buffer_that_a_later_step_uses_is_not_said_to_change_nothing(tmp_path: Path) -> None:
    class Late(nn.Linear):
        def __init__(self, wrong: bool) -> None:
            super().__init__(16, 16)
            self.calls = 0
            self.register_buffer("offset", torch.full((16,), float(wrong)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            y = super().forward(x)
            return y + self.offset if self.calls > 1 else y

    result = compared(tmp_path, lambda wrong: nn.Sequential(Late(wrong), nn.ReLU()), steps=2)
    assert result.verdict == "differs"
    assert result.origin is not None
    assert result.origin.step == 1
    assert not [note for note in result.notes if "changes nothing" in note]


def test_a_frozen_parameter_that_is_expanded_is_named(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        model = nn.Sequential(Scaled(False), nn.Linear(16, 4))
        model[0].first.requires_grad_(not wrong)
        return model

    result = compared(tmp_path, build, clip=0.1)
    assert result.origin is not None
    assert "first of Module.0.Scaled: requires_grad is False, not True" in result.origin.sentence


@pytest.mark.parametrize("ones", [False, True], ids=["other weights", "equal weights"])
def test_a_module_in_anothers_place_is_no_weight_that_differs(tmp_path: Path, ones: bool) -> None:
    """With equal weights only the gradients differ, and still the forward is named."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        return self.out(key * (self.key(x) if self.wrong else self.value(x)))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, key=nn.Linear(16, 16), value=nn.Linear(16, 16), out=nn.Linear(16, 4))
        if ones:
            model.value.load_state_dict(model.key.state_dict())
        model.wrong = wrong
        return model

    origin = compared(tmp_path, build).origin
    assert origin is not None
    assert (origin.kind, origin.direction) == ("replaced", "forward")
    assert "Module.value.Linear.forward.0 is replaced by Module.key.Linear.forward.1" in origin.sentence


def test_a_mask_of_booleans_and_one_to_add_are_the_same(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=mask)[0]

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool).tril()
        if self.wrong:
            mask = torch.zeros(8, 8).masked_fill(~mask, torch.finfo(torch.float32).min)
        return self.out(self.attention(self.first(x), mask))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, first=nn.Linear(16, 16), attention=Attention(), out=nn.Linear(16, 4))
        model.wrong = wrong
        return model

    assert compared(tmp_path, build).verdict == "same"


def test_recomputation_may_need_gradients_of_more_inputs(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.layer(x) + bias)

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros(8, 16)
        if self.wrong:  # as T5 does
            bias.requires_grad_()
            return self.out(checkpoint(self.block, x, bias, use_reentrant=False))
        return self.out(self.block(x, bias))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, block=Block(), out=nn.Linear(16, 4))
        model.wrong = wrong
        return model

    result = compared(tmp_path, build)
    assert (result.verdict, result.origin) == ("same", None)


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_five_percent_of_a_small_result_in_bf16_are_seen_in_the_forward(tmp_path: Path, factor: float) -> None:
    """The result is small because the weights are, not because it cancels."""

    class Small(nn.Module):
        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.up, self.down, self.factor = nn.Linear(16, 64), nn.Linear(64, 16), factor if wrong else 1.0
            nn.init.normal_(self.down.weight, std=0.002)
            nn.init.zeros_(self.down.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.down(F.gelu(self.up(x)))
            return found * self.factor if self.factor != 1.0 else found

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        return self.out(x + self.small(x))

    def build(wrong: bool) -> nn.Module:
        return Model(forward, small=Small(wrong), out=nn.Linear(16, 4)).to(torch.bfloat16)

    origin = compared(tmp_path, build).origin
    assert origin is not None
    assert (origin.direction, origin.module) == ("forward", "Module.small.Small")


def test_small_differences_are_not_said_to_be_another_order(tmp_path: Path) -> None:
    target = planted.run("transformer", tmp_path / "target", "half precision scores")
    result = compare(target, planted.run("transformer", tmp_path / "golden"))
    assert not [row.name for _, row in result.rows() if "different order" in row.reason]
    assert result.origin is not None
    assert result.origin.name != "Torch.matmul.2.forward.output.0"


def _recorded(path: Path, tensor: torch.Tensor, call: Any) -> Path:
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level="L1")
    debugger.start()
    call(tensor)
    debugger.stop()
    debugger.step()
    return path


def _coo(columns: list[int]) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1, 2], columns], [1.0, 2.0, 3.0], (3, 4))


def _csr(columns: list[int]) -> torch.Tensor:
    return torch.sparse_csr_tensor([0, 1, 2, 3], columns, [1.0, 2.0, 3.0], (3, 4))


def _nested(sizes: list[int]) -> torch.Tensor:
    return torch.nested.nested_tensor(list(torch.arange(1.0, 7.0).split(sizes)))


@pytest.mark.parametrize(
    ("golden", "target", "call", "said"),
    [
        (_coo([0, 1, 2]), _coo([0, 1, 3]), torch.relu, "the indices differ"),
        (_csr([0, 1, 2]), _csr([0, 1, 3]), torch.relu, "the plain indices differ"),
        (_nested([2, 4]), _nested([3, 3]), torch.relu, "the sizes differ"),
    ],
    ids=["coo", "csr", "nested"],
)
def test_the_same_values_at_other_places_differ(
    tmp_path: Path, golden: torch.Tensor, target: torch.Tensor, call: Any, said: str
) -> None:
    paths = [_recorded(tmp_path / name, one, call) for name, one in (("target", target), ("golden", golden))]
    result = compare(*paths)
    assert result.verdict == "differs"
    assert said in " ".join(row.reason for _, row in result.rows())
    again = _recorded(tmp_path / "again", golden, call)
    assert compare(again, paths[1]).verdict == "same"


def test_an_infinity_that_hides_other_values_is_not_the_same(tmp_path: Path) -> None:
    values = {"target": [torch.inf, 1.0, 5.0], "golden": [torch.inf, 1.0, 7.0]}
    paths = [_recorded(tmp_path / name, torch.tensor(one), torch.relu) for name, one in values.items()]
    result = compare(*paths)
    assert (result.verdict, result.exit_code) == ("not_compared", 2)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_float4_is_judged_by_its_spacing(tmp_path: Path) -> None:
    def packed(*codes: int) -> torch.Tensor:
        return torch.tensor(codes, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    def call(tensor: torch.Tensor) -> Any:
        return torch.cat([tensor])

    cases = {"golden": packed(0x22, 0x44), "target": packed(0x22, 0x77), "again": packed(0x22, 0x44)}
    paths = {name: _recorded(tmp_path / name, one, call) for name, one in cases.items()}
    assert compare(paths["again"], paths["golden"]).verdict == "same"
    assert compare(paths["target"], paths["golden"]).verdict == "differs"
