"""Six more faults of a compiler, of kinds that `faults.py` does not have; the expected answers were written first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from faults import Fault, aten, decomposition, lowering, small
from torch import Tensor, nn


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        turned = x.permute(0, 2, 3, 1)
        return torch.tanh(self.fc(turned))


class Window(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (1, 1), value=-3.0)
        return padded.unfold(-1, 3, 1).sum(-1)


class Threshold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        on = torch.ge(x, 0.0)
        return torch.where(on, x + 1.0, x * 0.5)


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.sin(self.table(tokens))


class Average(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        average = x.mean(-1)
        return average * 2.0


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x.sum(0))
        return x * 2.0


# How they are planted.


def swapped(inductor: Any, right: Any, x: Any, dims: Any) -> Any:
    """Swaps two axes of equal size."""
    return right(x, [0, 3, 2, 1] if list(dims) == [0, 2, 3, 1] else dims)


def padded_with_zero(inductor: Any, right: Any, x: Any, padding: Any, value: float = 0) -> Any:
    return right(x, padding, 0.0)


def greater(inductor: Any, right: Any, a: Any, b: Any) -> Any:
    return inductor.lowerings[aten.gt.Scalar](a, b)


def overwritten(grad: Tensor, indices: Tensor, size: int, padding: int, scaled: bool) -> Tensor:
    """A token that comes twice keeps one of its gradients only."""
    made = grad.new_zeros(size, grad.shape[-1])
    return torch.ops.aten.index_put(made, [indices], grad, accumulate=False)


def rounded_divisor(inductor: Any, right: Any, x: Any, axis: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """Multiplies by one over the number of values, rounded to half precision."""
    total = inductor.lowerings[aten.sum.dim_IntList](x, axis, keepdim)
    return inductor.mul(total, float(torch.tensor(1 / 60).half()))


@contextmanager
def lost_write() -> Iterator[None]:
    """A pass that takes the write to an input for dead code."""
    import torch._inductor.config as config

    def drop(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.copy_.default:
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
        graph.lint()

    with config.patch(post_grad_custom_post_pass=drop):
        yield


def with_zeros() -> tuple[Tensor, ...]:
    return (torch.tensor([[-1.0, 0.0, 2.0], [0.0, -0.5, 0.0]]),)


MORE = (
    Fault(
        "axes swapped",
        lowering(aten.permute.default, swapped),
        Turn,
        small(2, 6, 6, 6),
        "permute",
        "x.permute",
        "aten.permute",
    ),
    Fault(
        "padding value lost",
        lowering(aten.constant_pad_nd.default, padded_with_zero),
        Window,
        small(2, 8),
        "pad",
        "F.pad",
        "constant_pad_nd",
    ),
    Fault("greater, not equal", lowering(aten.ge.Scalar, greater), Threshold, with_zeros, "ge", "torch.ge", "aten.ge"),
    Fault(
        "gradients of repeated tokens overwritten",
        decomposition(aten.embedding_dense_backward.default, overwritten),
        Repeated,
        lambda: (torch.tensor([[1, 2, 1], [4, 1, 0]]),),
        "embedding",
        "self.table",
        "embedding_dense_backward",
        backward=True,
    ),
    Fault(
        "constant rounded to half precision",
        lowering(aten.mean.dim, rounded_divisor),
        Average,
        small(4, 60),
        "mean",
        "x.mean",
        "aten.mean",
    ),
    Fault("lost write to a buffer", lost_write, Counter, small(4, 8), "add_", "self.total.add_", ""),
)
