"""One test for each class of wrong answer that was seen on real models, each with a small model of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gloo
from msprobe.compare import Comparison, compare


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(step))


def train(
    path: Path,
    model: nn.Module,
    clip: Optional[float] = None,
    stop_first: bool = False,
    steps: int = 2,
    scale: float = 1.0,
    lr: float = 1e-3,
    level: str = "mix",
) -> Path:
    """Two steps of AdamW; `stop_first` leaves the optimizer out of the recording."""
    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    debugger = PrecisionDebugger(dump_path=str(path), task="statistics", level=level)
    for step in range(steps):
        debugger.start(model)
        (scale * model(batch(step)).square().mean()).backward()
        if stop_first:
            debugger.stop()
            debugger.step()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if not stop_first:
            debugger.stop()
            debugger.step()
    return path


def compared(tmp_path: Path, build: Callable[[bool], nn.Module], **options: Any) -> Comparison:
    """`build(True)` is the run in question, `build(False)` the golden one."""
    paths = []
    for wrong in (False, True):
        torch.manual_seed(0)
        paths.append(train(tmp_path / ("target" if wrong else "golden"), build(wrong), **options))
    return compare(paths[1], paths[0])


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * s * (1 + x * (1 - s)) * 1.0003


class Model(nn.Module):
    """A model from a function of its layers."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


class Activation(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return WrongBackward.apply(x) if self.wrong else F.silu(x)


def test_01_a_wrong_backward_is_not_blamed_on_the_optimizer(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        return nn.Sequential(
            nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 64), Activation(wrong), nn.Linear(64, 4)
        )

    result = compared(tmp_path, build, scale=0.03)
    assert result.origin is not None
    assert (result.origin.module, result.origin.direction) == ("Module.3.Activation", "backward")
    introduced = [row for _, row in result.rows() if row.role == "introduced"]
    assert len(introduced) <= 4


def test_02_memory_that_is_only_written_is_no_input(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        order = x[:, 0].argsort()
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(8)
        out = x.new_empty(8, 32)
        out[:, :16].copy_(x)
        out[:, 16:].copy_(x[inverse])
        return out

    def build(wrong: bool) -> nn.Module:
        junk = [torch.full((size,), 7.0 + wrong * 1e9) for size in (8, 16, 128, 256) for _ in range(200)]
        del junk
        return Model(forward, a=nn.Linear(16, 16))

    assert compared(tmp_path, build).verdict == "same"


class Block(nn.Module):
    def __init__(self, low: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.low = low
        if low:
            self.linear.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.linear(x.bfloat16()).float() if self.low else self.linear(x))


@pytest.mark.parametrize("stop_first", [True, False])
def test_03_one_layer_in_another_precision_is_named(tmp_path: Path, stop_first: bool) -> None:
    def build(wrong: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), Block(False), Block(wrong), nn.Linear(32, 4))

    result = compared(tmp_path, build, clip=1.0, stop_first=stop_first)
    assert result.verdict == "differs"
    assert result.origin is not None
    assert result.origin.module == "Module.2.linear.Linear"
    assert "bfloat16, not float32" in result.origin.sentence


def test_04_a_frozen_parameter_is_named(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
        model[2].weight.requires_grad_(not wrong)
        return model

    result = compared(tmp_path, build, clip=0.01)
    assert result.origin is not None
    assert (result.origin.kind, result.origin.module) == ("gradient", "Module.2.Linear")
    assert "weight" in result.origin.sentence


def test_05_inputs_of_a_broadcastable_shape_are_compared(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        positions = (torch.arange(16) + 1)[None].repeat(8, 1) if self.wrong else torch.arange(16)[None]
        return self.b(self.a(x) * torch.cos(positions.float()))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, a=nn.Linear(16, 16), b=nn.Linear(16, 4))
        model.wrong = wrong
        return model

    result = compared(tmp_path, build, stop_first=True)
    assert result.origin is not None
    assert result.origin.name == "Tensor.__add__.0.forward"  # not the call that only repeats what it made
    assert "same" not in result.origin.sentence


def test_06_operands_of_a_sum_may_change_places(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        return self.b(F.gelu(x + y if self.wrong else y + x))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, a=nn.Linear(16, 16), b=nn.Linear(16, 4))
        model.wrong = wrong
        return model

    assert compared(tmp_path, build, stop_first=True).verdict == "same"


class Attended(nn.Module):
    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor], context: torch.Tensor) -> torch.Tensor:
        y = x + context
        return y if mask is None else y + mask


def test_07_gradients_keep_their_argument_where_one_is_none(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(1, 16) if self.wrong else None
        return self.b(self.attended(self.a(x), mask, self.c(x)))

    def build(wrong: bool) -> nn.Module:
        layers = {"a": nn.Linear(16, 16), "c": nn.Linear(16, 16), "attended": Attended(), "b": nn.Linear(16, 4)}
        model = Model(forward, **layers)
        model.wrong = wrong
        return model

    assert compared(tmp_path, build, stop_first=True).verdict == "same"


@pytest.mark.parametrize("stop_first", [True, False])
def test_08_a_gradient_of_nothing_but_rounding_is_no_difference(tmp_path: Path, stop_first: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None].expand(-1, 6, -1) + torch.arange(6)[None, :, None] * 0.1
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.wrong:
            return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        return F.scaled_dot_product_attention(q, k, v)

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, q=nn.Linear(16, 16), k=nn.Linear(16, 16), v=nn.Linear(16, 16))
        model.wrong = wrong
        return model

    assert compared(tmp_path, build, clip=1.0, stop_first=stop_first).verdict == "same"


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, use_cache: bool = True) -> torch.Tensor:
        return self.linear(x)


def test_09_an_argument_that_changes_no_result_is_a_note(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x, use_cache=not self.wrong))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, a=Flagged(), b=nn.Linear(16, 4))
        model.wrong = wrong
        return model

    result = compared(tmp_path, build, stop_first=True)
    assert result.verdict == "same"
    assert any("use_cache" in note for note in result.notes)


class Gated(nn.Module):
    """Gate and up as two projections, or as one."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        gate, up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.fused = fused
        if fused:
            self.both = nn.Linear(16, 64, bias=False)
            self.both.weight.data.copy_(torch.cat([gate.weight, up.weight]))
        else:
            self.gate, self.up = gate, up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.both(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return F.silu(a) * b


def test_10_a_fused_projection_is_the_same_in_its_backward(tmp_path: Path) -> None:
    def build(wrong: bool) -> nn.Module:
        before, after = nn.Linear(16, 16), nn.Linear(32, 4)
        torch.manual_seed(1)
        return nn.Sequential(before, Gated(wrong), after)

    assert compared(tmp_path, build, steps=1, stop_first=True).verdict == "same"


def test_11_swapped_operands_are_said_to_be_swapped(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        pair = (x.cos(), x.sin()) if self.wrong else (x.sin(), x.cos())
        return self.a(torch.cat(pair, 1))

    def build(wrong: bool) -> nn.Module:
        model = Model(forward, a=nn.Linear(32, 16))
        model.wrong = wrong
        return model

    result = compared(tmp_path, build, stop_first=True)
    assert result.origin is not None
    assert result.origin.name == "Torch.cat.0.forward"
    assert "operands swapped" in result.origin.sentence


def test_another_learning_rate_is_said_as_such(tmp_path: Path) -> None:
    paths = []
    for name, rate in (("golden", 1e-3), ("target", 1.1e-3)):
        torch.manual_seed(0)
        paths.append(train(tmp_path / name, nn.Sequential(nn.Linear(16, 4)), lr=rate))
    result = compare(paths[1], paths[0])
    assert result.origin is not None
    assert result.origin.sentence == "AdamW: lr is 0.0011, not 0.001"
    assert (result.origin.step, result.origin.direction) == (0, "after the backward")


def repeated(tmp_path: Path, script: str) -> tuple[list[dict[str, Any]], Comparison]:
    """What each rank of the first of two equal runs recorded, and the comparison of the two."""
    file = tmp_path / "parallel.py"
    file.write_text(script)
    for name in ("target", "golden"):
        done = gloo.ranks(file, tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    records = [json.loads((tmp_path / f"golden/step0/rank{rank}/dump.json").read_text())["data"] for rank in (0, 1)]
    return records, compare(tmp_path / "target", tmp_path / "golden")


def assert_same(result: Comparison) -> None:
    assert not [(row.name, row.reason) for _, row in result.rows() if row.verdict in ("warning", "error")]
    assert result.verdict == "same", result.reasons


TENSOR_PARALLEL = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from msprobe.pytorch import PrecisionDebugger
class Mlp(nn.Module):
    def __init__(self): super().__init__(); self.up = nn.Linear(16, 32); self.down = nn.Linear(32, 16)
    def forward(self, x): return self.down(F.gelu(self.up(x)))
torch.set_num_threads(1)
dist.init_process_group("gloo"); torch.manual_seed(0)
net = nn.Sequential(Mlp(), Mlp())
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
for mlp in net: parallelize_module(mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")
debugger.start(net); net(torch.ones(4, 16)).square().mean().backward(); debugger.stop(); debugger.step()
dist.destroy_process_group()
"""


def test_12_a_functional_collective_is_recorded_after_its_wait(tmp_path: Path) -> None:
    ranks, result = repeated(tmp_path, TENSOR_PARALLEL)
    assert_same(result)
    sums = [name for name in ranks[0] if name.startswith("Ops._c10d_functional.all_reduce.")]
    assert len(sums) == 3
    for name in sums:
        given = sum(rank[name]["input_args"][0]["Mean"] for rank in ranks)
        for rank in ranks:
            assert rank[name]["output"][0]["Mean"] == pytest.approx(given, abs=1e-7)
    for rank in ranks:
        output = rank["Module.0.Mlp.forward.0"]["output"][0]
        assert output["Norm"] == pytest.approx(rank[sums[0]]["output"][0]["Norm"])


FULLY_SHARDED = """
import sys
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from msprobe.pytorch import PrecisionDebugger
torch.set_num_threads(1)
dist.init_process_group("gloo"); torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
fully_shard(net[0]); fully_shard(net[2]); fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")
x = torch.randn(4, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
debugger.start(net); net(x).square().mean().backward(); optimizer.step(); debugger.stop(); debugger.step()
if dist.get_rank() == 0:
    import json, pathlib
    norms = {name: one.grad.to_local().double().norm().item() for name, one in net.named_parameters()}
    pathlib.Path(sys.argv[1], "norms.json").write_text(json.dumps(norms))
dist.destroy_process_group()
"""


def test_13_fsdp2_is_the_same_as_its_repetition_and_has_its_gradients(tmp_path: Path) -> None:
    ranks, result = repeated(tmp_path, FULLY_SHARDED)
    assert_same(result)
    expected = json.loads((tmp_path / "golden/norms.json").read_text())
    found = {
        f"{layer}.{name}": items[0]["Norm"]
        for layer in (0, 2)
        for name, items in ranks[0][f"Module.{layer}.FSDPLinear.parameters_grad"].items()
    }
    assert found == pytest.approx(expected)
