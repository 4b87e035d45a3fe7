"""Twenty wrong kernels for float32, each planted in place of torch's own on the CPU; other dtypes get the right answer.

Imported by a training run they make its outputs wrong; imported by the workers of a check (`--import`) they make the
device under test wrong. `steps` calls each of them once, and others that nobody touched.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F

_library = torch.library.Library("aten", "IMPL")
# The call that shows each fault, by the direction in which it is planted.
FORWARD: set[str] = set()
BACKWARD: set[str] = set()


def _wrong(operator: str, call: str, direction: str = "forward") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def plant(kernel: Callable[..., Any]) -> Callable[..., Any]:
        (FORWARD if direction == "forward" else BACKWARD).add(call)
        _library.impl(operator, kernel, "CPU")
        return kernel

    return plant


def _bad(x: Any) -> bool:
    return bool(x.dtype == torch.float32)


@_wrong("gelu", "Functional.gelu.0")
def gelu_wrong_constant(x: Any, *, approximate: str = "none") -> Any:
    return 0.5 * x * (1 + torch.erf(x * (0.70 if _bad(x) else math.sqrt(0.5))))


@_wrong("gelu_backward", "Functional.gelu.1", "backward")
def gelu_wrong_gradient(grad: Any, x: Any, *, approximate: str = "none") -> Any:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density * (0.95 if _bad(x) else 1))


@_wrong("mm", "Torch.mm.0")
def mm_accumulates_in_bf16(a: Any, b: Any) -> Any:
    if not _bad(a):
        return sum(a[:, k, None] * b[None, k] for k in range(a.shape[1]))
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    for k in range(a.shape[1]):
        total += (a[:, k, None] * b[None, k]).bfloat16()
    return total.float()


@_wrong("silu", "Functional.silu.0")
def silu_wrong_slope(x: Any) -> Any:
    return x / (1 + torch.exp(-x * (1.01 if _bad(x) else 1)))


@_wrong("silu_backward", "Functional.silu.1", "backward")
def silu_gradient_without_second_term(grad: Any, x: Any) -> Any:
    s = 1 / (1 + torch.exp(-x))
    return grad * (s if _bad(x) else s * (1 + x * (1 - s)))


@_wrong("tanh_backward", "Torch.tanh.0", "backward")
def tanh_gradient_not_squared(grad: Any, y: Any) -> Any:
    return grad * (1 - (y.abs() if _bad(y) else y * y))


@_wrong("sigmoid_backward", "Torch.sigmoid.0", "backward")
def sigmoid_gradient_scaled(grad: Any, y: Any) -> Any:
    return grad * y * (1 - y) * (1.002 if _bad(y) else 1)


@_wrong("aminmax", "Torch.aminmax.0")
def aminmax_swapped(x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    low, high = x.flatten().sort()[0][0], x.flatten().sort()[0][-1]
    return (high, low) if _bad(x) else (low, high)


@_wrong("cumsum", "Torch.cumsum.0")
def cumsum_off_by_one(x: Any, dim: int, *, dtype: Any = None) -> Any:
    n = x.shape[dim]
    ones = torch.ones(n, n, dtype=x.dtype).tril(-1 if _bad(x) else 0)
    return torch.einsum("...j,ij->...i", x, ones)


@_wrong("_softmax", "Torch.softmax.0")
def softmax_forgets_the_last(x: Any, dim: int, half_to_float: bool) -> Any:
    e = torch.exp(x - x.sort(dim)[0].narrow(dim, -1, 1))
    total = sum(e.select(dim, i) for i in range(e.shape[dim] - (1 if _bad(x) else 0)))
    return e / total.unsqueeze(dim)


@_wrong("_log_softmax", "Functional.log_softmax.0")
def log_softmax_base_two(x: Any, dim: int, half_to_float: bool) -> Any:
    shifted = x - x.sort(dim)[0].narrow(dim, -1, 1)
    total = sum(torch.exp(shifted.select(dim, i)) for i in range(x.shape[dim])).unsqueeze(dim)
    return shifted - (torch.log2(total) if _bad(x) else torch.log(total))


@_wrong("softplus", "Functional.softplus.0")
def softplus_early_threshold(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    return torch.where(x > (1 if _bad(x) else threshold), x, torch.log1p(torch.exp(x)))


@_wrong("leaky_relu_backward", "Functional.leaky_relu.0", "backward")
def leaky_relu_gradient_slope(grad: Any, x: Any, slope: Any, is_result: bool) -> Any:
    return torch.where(x > 0, grad, grad * (0.0 if _bad(x) else slope))


@_wrong("sqrt", "Torch.sqrt.0")
def sqrt_in_half_precision(x: Any) -> Any:
    return torch.pow(x.bfloat16(), 0.5).float() if _bad(x) else torch.pow(x, 0.5)


@_wrong("topk", "Torch.topk.0")
def topk_indices_off_by_one(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, indices = x.sort(dim, descending=largest)
    values, indices = values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
    return values.contiguous(), (indices + 1 if _bad(x) else indices).contiguous()


@_wrong("native_layer_norm", "Functional.layer_norm.0")
def layer_norm_divides_by_n_minus_1(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    n = x.shape[-1]
    mean = torch.einsum("...i->...", x).unsqueeze(-1) / n
    spread = torch.einsum("...i,...i->...", x - mean, x - mean).unsqueeze(-1) / (n - 1 if _bad(x) else n)
    scale = 1 / torch.pow(spread + eps, 0.5)
    return (x - mean) * scale * weight + bias, mean, scale


@_wrong("threshold_backward", "Functional.relu.0", "backward")
def relu_gradient_leaks(grad: Any, x: Any, threshold: Any) -> Any:
    return torch.where(x > threshold, grad, grad * (0.01 if _bad(x) else 0.0))


@_wrong("maximum", "Torch.maximum.0")
def maximum_of_magnitudes(a: Any, b: Any) -> Any:
    return torch.where(a.abs() > b.abs(), a, b) if _bad(a) else torch.where(a > b, a, b)


@_wrong("avg_pool2d", "Functional.avg_pool2d.0")
def avg_pool_counts_wrong(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, pad: bool = True, divisor: Any = None
) -> Any:
    parts = [x[..., i::2, j::2] for i in range(2) for j in range(2)]
    return (parts[0] + parts[1] + parts[2] + parts[3]) / (3 if _bad(x) else 4)


@_wrong("expm1", "Torch.expm1.0")
def expm1_cancels(x: Any) -> Any:
    return torch.exp(x) - 1 if _bad(x) else torch.sinh(x / 2) * torch.exp(x / 2) * 2


@_wrong("flip", "Torch.flip.0")
def flip_drops_the_first(x: Any, dims: Any) -> Any:
    order = torch.arange(x.shape[dims[0]] - 1, -1, -1)
    if _bad(x):
        order = (order - 1).clamp(min=0)
    return torch.take_along_dim(x, order.view(-1, *[1] * (x.dim() - 1)), 0)


def steps() -> None:
    """Every planted call once, and some that are right."""
    random = torch.Generator().manual_seed(5)

    def made(*shape: int) -> Any:
        return torch.randn(*shape, generator=random).requires_grad_()

    with torch.no_grad():
        F.gelu(made(8, 32))
        torch.mm(made(16, 256), made(256, 8))
        F.silu(made(8, 32))
        torch.aminmax(made(40))
        torch.cumsum(made(4, 20), 1)
        torch.softmax(made(6, 10), 1)
        F.log_softmax(made(6, 10), 1)
        F.softplus(made(6, 40))
        torch.sqrt(made(6, 40).abs() + 1)
        torch.topk(made(6, 40), 3)
        F.layer_norm(made(6, 16), (16,), made(16), made(16))
        torch.maximum(made(6, 16), made(6, 16))
        F.avg_pool2d(made(1, 2, 8, 8), 2)
        torch.expm1(made(50) * 1e-6)
        torch.flip(made(30), [0])
    for call in (F.gelu, F.silu, torch.tanh, torch.sigmoid, F.leaky_relu, F.relu):
        call(made(8, 32)).backward(torch.randn(8, 32, generator=random))
    untouched = made(6, 16)
    for call in (F.elu, F.mish, torch.exp, torch.sin, torch.erf, F.hardswish, torch.logsumexp):
        out = call(untouched, 1) if call is torch.logsumexp else call(untouched)
        out.backward(torch.ones_like(out))
