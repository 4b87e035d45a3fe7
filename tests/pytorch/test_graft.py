"""Grafts: values of a different run in a call or a module, with the gradient path intact."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from msprobe.pytorch.graft import GraftError, causal_shares, grafted, put, put_all


def test_put_changes_the_values_and_keeps_the_graph() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    y = x.exp()
    golden = torch.rand(4, 3)
    new = put(y, golden, [x])
    assert torch.equal(new, golden)
    new.sum().backward()
    assert torch.equal(x.grad, golden)  # exp saves its result: its backward uses the golden one


def test_a_view_and_an_in_place_call_are_written() -> None:
    base = torch.zeros(4, 3)
    put(base[1:3], torch.ones(2, 3))
    assert base.sum() == 6
    x = torch.randn(5, requires_grad=True)
    y = (x * 1).relu_()
    put(y, torch.full((5,), 2.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(5))


def test_a_call_that_returns_its_input_does_not_change_it() -> None:
    x = torch.randn(3, requires_grad=True) * 1
    before = x.detach().clone()
    new = put(x, torch.zeros(3), [x])
    assert torch.equal(x, before)
    assert torch.equal(new, torch.zeros(3))
    (gradient,) = torch.autograd.grad(new.sum(), x)
    assert torch.equal(gradient, torch.ones(3))


def test_another_dtype_and_shared_elements_get_a_new_tensor() -> None:
    x = torch.randn(3, requires_grad=True)
    new = put((x * 1).bfloat16(), torch.full((3,), 0.1))
    assert new.dtype == torch.float32
    new.sum().backward()
    assert torch.equal(x.grad, torch.ones(3))
    assert torch.equal(put(torch.zeros(1).expand(4), torch.arange(4.0)), torch.arange(4.0))


def test_own_bits_add_no_node_to_the_graph() -> None:
    """A node would change the order in which gradients are added, and so their rounding."""
    x = torch.tensor([0.0, -0.0, torch.nan], requires_grad=True) * 1
    assert put(x, x.detach().clone(), [x]) is x
    assert put(x, torch.tensor([0.0, 0.0, torch.nan]), [x]) is not x
    wide = x[:1].expand(4)
    assert put(wide, torch.zeros(4)) is wide
    assert put(x, x.detach().double(), [x]).dtype == torch.float64


def test_the_cast_of_a_gradient_is_no_call_of_the_script() -> None:
    x = torch.randn(3, requires_grad=True)
    new = put((x * 1).bfloat16(), torch.full((3,), 0.1))

    class Seen(TorchFunctionMode):
        names: ClassVar[list[str]] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    # torch.autograd.backward() goes to the mode before anything runs, so the engine is called as it does.
    engine = torch.autograd.Variable._execution_engine
    with Seen():
        engine.run_backward((new,), (torch.ones(3),), False, False, (), allow_unreachable=True, accumulate_grad=True)
    assert torch.equal(x.grad, torch.ones(3))
    assert "to" not in Seen.names


@dataclass(frozen=True)
class _Result:
    first: torch.Tensor
    second: dict[str, torch.Tensor]


class _Output(OrderedDict[str, torch.Tensor]):
    """Like an output of transformers: its members are attributes too."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


def test_a_result_keeps_its_class() -> None:
    x = torch.zeros(2)
    golden = [torch.ones(2), torch.full((2,), 2.0)]
    for value in (_Result(x, {"a": torch.zeros(2)}), _Output(first=x, second=torch.zeros(2))):
        new = put_all(value, golden, [x])  # the call returned its input: a new tensor takes its place
        assert type(new) is type(value)
        assert new.first.tolist() == [1, 1]
        assert x.tolist() == [0, 0]
        second = new.second["a"] if isinstance(new, _Result) else new.second
        assert second.tolist() == [2, 2]


def test_another_shape_is_refused() -> None:
    with pytest.raises(GraftError, match=r"its shape is \[3\]"):
        put(torch.zeros(3), torch.zeros(4))


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + torch.relu_(self.fc(self.norm(x)))


class _Checkpointed(_Residual):
    def forward(self, x: Any) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class _Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.fc = kind(8, 8, batch_first=True), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.fc(self.cells(x)[0])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)[0]


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x[:, None]).flatten(1)


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "in place": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 8)),
    "images": _Images,
    "residual": _Residual,
    "checkpointed": _Checkpointed,
    "lstm": lambda: _Recurrent(nn.LSTM),
    "gru": lambda: _Recurrent(nn.GRU),
    "attention": _Attention,
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    "shared": lambda: nn.Sequential(*[nn.Linear(8, 8)] * 2, nn.Softmax(-1)),
    "normed": lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(1, 6), nn.Identity(), nn.Flatten()),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_own_values_leave_every_bit_as_it_was(name: str, autocast: bool) -> None:
    def train(own: bool) -> list[Any]:
        torch.manual_seed(0)
        model = ARCHITECTURES[name]()
        batch = torch.randn(4, 6, 8, requires_grad=True)
        hooks = [one.register_forward_hook(_put_own) for one in model.modules()] if own else []
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(batch).float().square().mean()
            loss.backward()
            with torch.no_grad():
                for one in model.parameters():
                    one -= 0.1 * one.grad
        assert bool(hooks) == own
        return [loss, batch.grad, *model.parameters(), *(one.grad for one in model.parameters())]

    plain, with_grafts = train(False), train(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, with_grafts))


def _put_own(module: Any, args: Any, output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return put(output, output.detach().clone(), [one for one in args if isinstance(one, torch.Tensor)])
    return None


def test_the_share_of_each_layer() -> None:
    torch.manual_seed(0)
    golden = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    wrong = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    wrong.load_state_dict(golden.state_dict())
    with torch.no_grad():
        wrong[1].weight.mul_(1.5)
        wrong[3].bias.add_(0.01)
    batch = torch.randn(5, 8)
    outputs, x = [], batch
    for layer in golden:
        x = layer(x)
        outputs.append(x.detach())
    layers = {str(number): (layer, output) for number, (layer, output) in enumerate(zip(wrong, outputs))}
    shares = causal_shares(layers, lambda: float(wrong(batch).mean()), float(golden(batch).mean()))
    assert shares["0"] == shares["2"] == pytest.approx(0, abs=1e-6)
    assert sum(value for value in shares.values() if value is not None) == pytest.approx(1)
    assert abs(shares["1"] or 0) > 0.01
    assert abs(shares["3"] or 0) > 0.01


def test_grafts_end_with_their_block() -> None:
    layer = nn.Linear(3, 3)
    batch = torch.randn(2, 3)
    before = layer(batch)
    with grafted({layer: torch.zeros(2, 3)}):
        assert torch.equal(layer(batch), torch.zeros(2, 3))
    assert torch.equal(layer(batch), before)
