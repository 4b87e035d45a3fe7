"""Twelve faults of a compiler, each with a small model and the node that `check_compiled` must name.

A fault changes Inductor (a lowering, a decomposition, a pass over its graph) while it is planted, and only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

aten = torch.ops.aten


@dataclass(frozen=True)
class Fault:
    """A planted fault. `node` is the function that the answer must name, `line` a part of its source line."""

    name: str
    plant: Callable[[], Any]
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    node: str
    line: str
    cause: str
    backward: bool = False
    more_inputs: Callable[[], list[tuple[Tensor, ...]]] = list
    dynamic: bool = False


class Mlp(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(8, 16), nn.Linear(16, 8), act

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.up(x))
        return self.down(h) + x


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * scale * self.weight


class Shifted(nn.Module):
    """Cancels in fp32, so it computes in fp64."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.double()
        return ((wide + 1e5) - 1e5).float()


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pooled = x.sum(1)
        return torch.relu(pooled)


class Decay(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(-x.abs())
        return x * decay


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.tanh(self.fc(x))
        return gate * 2.0


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(self.norm(x)))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        center = x.mean(0)
        return x - center


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return x * 3.0


class Mix(nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        product = torch.mul(x, y)
        mixed = torch.add(product, z)
        return torch.relu(mixed)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2)
        weights = torch.softmax(scores * 40.0, -1)
        return weights @ k


# How they are planted.


@contextmanager
def replaced(table: Any, key: Any, value: Any) -> Iterator[None]:
    old = table[key]
    table[key] = value(old)
    try:
        yield
    finally:
        table[key] = old


def lowering(operator: Any, wrong: Callable[..., Any]) -> Callable[[], Any]:
    def plant() -> Any:
        from torch._inductor import lowering as inductor

        def replace(right: Any) -> Any:
            def wrong_lowering(*args: Any, **kwargs: Any) -> Any:
                return wrong(inductor, right, *args, **kwargs)

            return wrong_lowering

        return replaced(inductor.lowerings, operator, replace)

    return plant


def decomposition(operator: Any, wrong: Callable[..., Any]) -> Callable[[], Any]:
    def plant() -> Any:
        from torch._inductor.decomposition import decompositions, fast_random_decomps

        both = ExitStack()
        for table in (decompositions, fast_random_decomps()):
            both.enter_context(replaced(table, operator, lambda right: wrong))
        return both

    return plant


def wrong_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def wrong_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    exp = torch.exp(x)
    return exp / exp.sum(dim, keepdim=True)


def wrong_tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y)


def wrong_layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> tuple[Any, ...]:
    normal = (x - mean) * rstd
    return grad * weight * rstd, (grad * normal).sum(0), grad.sum(0)


@contextmanager
def wrong_fusion() -> Iterator[None]:
    """A pass that fuses mul and add, and loses digits of what it adds."""
    import torch._inductor.config as config

    def fuse(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.add.Tensor and getattr(node.args[0], "target", None) is aten.mul.Tensor:
                with graph.inserting_before(node):
                    rounded = graph.call_function(aten.mul.Tensor, (node.args[1], 0.999))
                node.args = (node.args[0], rounded)
        graph.lint()

    with config.patch(post_grad_custom_post_pass=fuse):
        yield


def wrong_sum(inductor: Any, right: Any, x: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
    if axis == [1]:
        x = inductor.slice_(x, 1, 0, x.get_size()[1] - 1)
    return right(x, axis, *args, **kwargs)


def small(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*shape, generator=torch.Generator().manual_seed(3)),)


def several(count: int, *shape: int) -> Callable[[], tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(4)
    return lambda: tuple(torch.randn(*shape, generator=generator) for _ in range(count))


def scaled(factor: float) -> Callable[..., Any]:
    return lambda inductor, right, x: inductor.mul(right(x), factor)


def cast_dropped(inductor: Any, right: Any, x: Any, dtype: Any) -> Any:
    return x if dtype == torch.float64 else right(x, dtype)


def fast_exp(inductor: Any, right: Any, x: Any) -> Any:
    return inductor.lowerings[aten.exp2.default](inductor.mul(x, 1.4424))


def baked_mean(inductor: Any, right: Any, x: Any, axis: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """Divides by the number of rows that the first call had."""
    from torch._inductor.virtualized import V

    rows = x.get_size()[0]
    hint = V.graph.sizevars.optimization_hint(rows, fallback=1)
    total = inductor.lowerings[aten.sum.dim_IntList](x, axis, keepdim)
    return inductor.div(total, float(hint))


def clamped_embedding(inductor: Any, right: Any, table: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
    return right(table, inductor.lowerings[aten.clamp_max.default](indices, 10), *args, **kwargs)


def tokens() -> tuple[Tensor, ...]:
    return (torch.arange(12).reshape(3, 4),)


FAULTS = (
    Fault(
        "wrong lowering: erf", lowering(aten.erf.default, scaled(1.001)), Mlp, small(4, 8), "gelu", "self.act", "erf"
    ),
    Fault(
        "wrong lowering: rsqrt",
        lowering(aten.rsqrt.default, scaled(0.9999)),
        RmsNorm,
        small(4, 8),
        "rsqrt",
        "scale =",
        "rsqrt",
    ),
    Fault(
        "wrong decomposition: gelu",
        decomposition(aten.gelu.default, wrong_gelu),
        Mlp,
        small(4, 8),
        "gelu",
        "self.act",
        "wrong_gelu",
    ),
    Fault(
        "dropped cast",
        lowering(torch.ops.prims.convert_element_type.default, cast_dropped),
        Shifted,
        small(4, 8),
        "double",
        "x.double()",
        "convert_element_type",
    ),
    Fault(
        "wrong reduction range",
        lowering(aten.sum.dim_IntList, wrong_sum),
        Pool,
        small(4, 6),
        "sum",
        "x.sum(1)",
        "aten.sum",
    ),
    Fault("fast-math exp", lowering(aten.exp.default, fast_exp), Decay, small(4, 8), "exp", "torch.exp", "aten.exp"),
    Fault(
        "wrong backward: tanh",
        decomposition(aten.tanh_backward.default, wrong_tanh_backward),
        Gate,
        small(4, 8),
        "tanh",
        "torch.tanh",
        "tanh_backward",
        backward=True,
    ),
    Fault(
        "wrong backward: layer norm",
        decomposition(aten.native_layer_norm_backward.default, wrong_layer_norm_backward),
        Norm,
        lambda: (small(4, 8)()[0].requires_grad_(),),
        "layer_norm",
        "self.norm(x)",
        "native_layer_norm_backward",
        backward=True,
    ),
    Fault(
        "stale dynamic shape",
        lowering(aten.mean.dim, baked_mean),
        Mean,
        small(5, 8),
        "mean",
        "x.mean(0)",
        "aten.mean",
        more_inputs=lambda: [small(9, 8)()],
        dynamic=True,
    ),
    Fault(
        "wrong index range",
        lowering(aten.embedding.default, clamped_embedding),
        Lookup,
        tokens,
        "embedding",
        "self.table",
        "embedding",
    ),
    Fault("wrong fusion", wrong_fusion, Mix, several(3, 4, 8), "add", "torch.add", ""),
    Fault(
        "softmax overflows",
        decomposition(aten._softmax.default, wrong_softmax),
        Attention,
        several(2, 6, 8),
        "softmax",
        "torch.softmax",
        "_softmax",
    ),
)
