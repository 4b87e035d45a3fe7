"""Golden formulas for APIs whose MindSpore kernels have no float64 version, or compute in float32 inside.

Each formula uses operators that compute in float64, so its gradient is in float64 too. It takes the attributes of the
Primitive (none for a function), then the arguments of the API. If a formula returns fewer tensors than the API, the
others are not judged. If it raises `NotImplementedError`, it does not cover this call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import mindspore as ms
from mindspore import mint, ops

Attributes = dict[str, Any]


def _each(value: Any, dims: int) -> tuple[int, ...]:
    """One number per dimension. A Primitive may have four; only the last ones are spatial."""
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value[-dims:]) if len(value) != 1 else tuple(value) * dims


def _pads(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], mode: Any, padding: Any) -> Any:
    mode, dims = str(mode).lower(), len(size)
    if mode == "valid":
        return [(0, 0)] * dims
    if mode == "same":
        whole = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(size, kernel, stride)]
        return [(one // 2, one - one // 2) for one in whole]
    if not isinstance(padding, int) and len(padding) == 2 * dims:
        return [(padding[2 * n], padding[2 * n + 1]) for n in range(dims)]
    return [(one, one) for one in _each(padding, dims)]


def _padded(x: Any, pads: Any) -> Any:
    for axis, both in enumerate(pads, start=2):
        for after, width in enumerate(both):
            if width:
                shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
                zeros = ops.zeros(shape, x.dtype)
                x = ops.cat((x, zeros) if after else (zeros, x), axis)
    return x


def _windows(x: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Any:
    """For every position in the kernel, the part of `x` that it is applied to."""
    lengths = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation)]
    for place in itertools.product(*map(range, kernel)):
        part = x
        for axis, (at, step, d, length) in enumerate(zip(place, stride, dilation, lengths), start=2):
            part = ops.gather(part, ms.Tensor([at * d + n * step for n in range(length)], ms.int32), axis)
        yield place, part


def _conv(x: Any, weight: Any, bias: Any, stride: Any, mode: Any, padding: Any, dilation: Any, groups: int) -> Any:
    kernel = weight.shape[2:]
    dims = len(kernel)
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    x = _padded(x, _pads(x.shape[2:], reach, stride, mode, padding))
    out, inner = weight.shape[:2]
    total: Any = 0
    shape: Any = ()
    for place, part in _windows(x, kernel, stride, dilation):
        shape = (part.shape[0], out, *part.shape[2:])
        seen = part.reshape(part.shape[0], groups, inner, -1)
        factor = weight[(slice(None), slice(None), *place)].reshape(1, groups, out // groups, inner)
        total = total + ops.matmul(factor, seen)
    total = total.reshape(shape)
    return total if bias is None else total + bias.reshape(1, -1, *[1] * dims)


def conv(
    _: Attributes,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    pad_mode: Any = "valid",
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return _conv(input, weight, bias, stride, pad_mode, padding, dilation, groups)


def conv_primitive(at: Attributes, x: Any, weight: Any) -> Any:
    if at.get("data_format", "NCHW") not in ("NCHW", "NCDHW"):
        raise NotImplementedError
    return _conv(x, weight, None, at["stride"], at["pad_mode"], at["pad"], at["dilation"], at["group"])


def _average(x: Any, kernel: Any, stride: Any, mode: Any = "valid") -> Any:
    dims = len(x.shape) - 2
    kernel = _each(kernel, dims)
    steps = _each(stride, dims)
    if str(mode).lower() != "valid" or dims < 1:
        raise NotImplementedError
    total: Any = 0
    for _, part in _windows(x, kernel, steps, (1,) * dims):
        total = total + part
    return total / float(math.prod(kernel))


def avg_pool(
    _: Attributes,
    input_x: Any,
    kernel_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Any:
    if any(_each(padding, len(input_x.shape) - 2)) or ceil_mode or divisor_override:
        raise NotImplementedError
    return _average(input_x, kernel_size, stride)


def avg_pool_primitive(at: Attributes, x: Any) -> Any:
    return _average(x, at["kernel_size"], at["strides"], at["pad_mode"])


def _normal(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    mean = x.mean(axes, keep_dims=True)
    spread = ((x - mean) * (x - mean)).mean(axes, keep_dims=True)
    return (x - mean) / ops.sqrt(spread + epsilon)


def _along(x: Any, channel: Any) -> Any:
    return channel.reshape(1, -1, *[1] * (len(x.shape) - 2))


def _batch(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, epsilon: float) -> Any:
    if training:
        normal = _normal(x, (0, *range(2, len(x.shape))), epsilon)
    else:
        normal = (x - _along(x, mean)) / ops.sqrt(_along(x, variance) + epsilon)
    return normal * _along(x, weight) + _along(x, bias)


def batch_norm(
    _: Attributes,
    input_x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    return _batch(input_x, weight, bias, running_mean, running_var, training, eps)


def batch_norm_primitive(at: Attributes, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    if at["data_format"] != "NCHW":
        raise NotImplementedError
    return _batch(x, scale, bias, mean, variance, at["is_training"], at["epsilon"])


def layer_norm_primitive(at: Attributes, x: Any, gamma: Any, beta: Any) -> Any:
    first = at["begin_norm_axis"] % len(x.shape)
    return _normal(x, tuple(range(first, len(x.shape))), at["epsilon"]) * gamma + beta


def log_softmax(at: Attributes, logits: Any, axis: int = -1) -> Any:
    axis = at.get("axis", axis)
    shifted = logits - logits.max(axis, keepdims=True)
    return shifted - ops.log(ops.exp(shifted).sum(axis, keepdims=True))


def softplus(_: Attributes, input: Any, beta: float = 1, threshold: float = 20) -> Any:
    return ops.where(input * beta > threshold, input, ops.log1p(ops.exp(input * beta)) / beta)


def mish(_: Attributes, input: Any) -> Any:
    return input * ops.tanh(ops.log1p(ops.exp(input)))


def gelu(_: Attributes, input: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return 0.5 * input * (1 + ops.erf(input / math.sqrt(2)))
    return 0.5 * input * (1 + ops.tanh(math.sqrt(2 / math.pi) * (input + 0.044715 * input * input * input)))


def gelu_primitive(at: Attributes, x: Any) -> Any:
    return gelu(at, x, "tanh")


def relu6(_: Attributes, input: Any) -> Any:
    return ops.minimum(ops.maximum(input, ops.zeros_like(input)), ops.zeros_like(input) + 6)


def prelu(_: Attributes, input: Any, weight: Any) -> Any:
    slope = _along(input, weight) if len(input.shape) > 1 else weight
    return ops.where(input > 0, input, input * slope)


def hard_shrink(_: Attributes, input: Any, lambd: float = 0.5) -> Any:
    return ops.where(ops.abs(input) > lambd, input, ops.zeros_like(input))


def soft_shrink(_: Attributes, input: Any, lambd: float = 0.5) -> Any:
    zero = ops.zeros_like(input)
    return ops.where(input > lambd, input - lambd, ops.where(input < -lambd, input + lambd, zero))


def _reduced(losses: Any, reduction: str) -> Any:
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


def mse_loss(_: Attributes, input: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced((input - target) * (input - target), reduction)


def l1_loss(_: Attributes, input: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced(ops.abs(input - target), reduction)


def binary_cross_entropy(
    _: Attributes, logits: Any, labels: Any, weight: Optional[Any] = None, reduction: str = "mean"
) -> Any:
    losses = -(labels * ops.log(logits) + (1 - labels) * ops.log(1 - logits))
    return _reduced(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy_with_logits(
    _: Attributes, logits: Any, label: Any, weight: Any = None, pos_weight: Any = None, reduction: str = "mean"
) -> Any:
    positive = label if pos_weight is None else label * pos_weight
    losses = positive * ops.log1p(ops.exp(-logits)) + (1 - label) * (logits + ops.log1p(ops.exp(-logits)))
    return _reduced(losses if weight is None else losses * weight, reduction)


def dot(_: Attributes, input: Any, other: Any) -> Any:
    if len(input.shape) != 1 or len(other.shape) != 1:
        raise NotImplementedError
    return (input * other).sum()


def ger(_: Attributes, input: Any, vec2: Any) -> Any:
    return input.reshape(-1, 1) * vec2.reshape(1, -1)


def lerp(_: Attributes, input: Any, end: Any, weight: Any) -> Any:
    return input + (end - input) * weight


def addcdiv(_: Attributes, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return input + value * tensor1 / tensor2


def hypot(_: Attributes, input: Any, other: Any) -> Any:
    return ops.sqrt(input * input + other * other)


def cosine_similarity(_: Attributes, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    lengths = ops.sqrt((x1 * x1).sum(dim)) * ops.sqrt((x2 * x2).sum(dim))
    return (x1 * x2).sum(dim) / mint.maximum(lengths, ops.zeros_like(lengths) + eps)


FORMULAS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), conv),
    **dict.fromkeys(("Conv2D", "Conv3D"), conv_primitive),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d"), avg_pool),
    "AvgPool": avg_pool_primitive,
    "batch_norm": batch_norm,
    "BatchNorm": batch_norm_primitive,
    "LayerNorm": layer_norm_primitive,
    **dict.fromkeys(("log_softmax", "LogSoftmax"), log_softmax),
    **dict.fromkeys(("softplus", "Softplus"), softplus),
    **dict.fromkeys(("mish", "Mish"), mish),
    **dict.fromkeys(("relu6", "ReLU6"), relu6),
    **dict.fromkeys(("prelu", "PReLU"), prelu),
    "gelu": gelu,
    "GeLU": gelu_primitive,
    "hardshrink": hard_shrink,
    **dict.fromkeys(("softshrink", "soft_shrink"), soft_shrink),
    "mse_loss": mse_loss,
    "l1_loss": l1_loss,
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "dot": dot,
    "ger": ger,
    "lerp": lerp,
    "addcdiv": addcdiv,
    "hypot": hypot,
    "cosine_similarity": cosine_similarity,
}
