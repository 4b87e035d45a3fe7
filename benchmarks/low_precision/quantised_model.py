"""A small model that trains in mxfp8, nvfp4 or fp8: each Linear quantises the factors of its three products itself, as
tensors with their own `dequantize()`. A plan says what to do wrong, for the planted faults.

Nothing here uses msprobe: the formats are written again, with torch's casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import nn

Tensor = Any
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FLOAT4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
INPUTS, WEIGHTS, GRADIENTS = "inputs", "weights", "gradients"


class Quantised(torch.Tensor):
    """Stored numbers and the scales of their blocks, as tensors of torchao have them."""

    qdata: Tensor
    scale: Tensor
    per_tensor_scale: Optional[Tensor]

    @staticmethod
    def __new__(cls: Any, qdata: Tensor, scale: Tensor, shape: Any, per_tensor_scale: Any = None) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    def __init__(self, qdata: Tensor, scale: Tensor, shape: Any, per_tensor_scale: Any = None) -> None:
        self.qdata, self.scale, self.per_tensor_scale = qdata, scale, per_tensor_scale

    def __tensor_flatten__(self) -> Any:
        return ["qdata", "scale"] + (["per_tensor_scale"] if self.per_tensor_scale is not None else []), None

    def dequantize(self) -> Tensor:
        numbers = self.qdata.float() if self.qdata.dtype != torch.uint8 else unpack(self.qdata)
        numbers = numbers.reshape(self.shape)
        scale = self.scale.float() * (1.0 if self.per_tensor_scale is None else self.per_tensor_scale)
        if scale.dim() == 2:
            rows, columns = (-(-size // part) for size, part in zip(self.shape, scale.shape))
            scale = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: self.shape[0], : self.shape[1]]
        return numbers * scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [one.dequantize() if isinstance(one, cls) else one for one in args]
        return func(*plain, **(kwargs or {}))


def pack(values: Tensor) -> Tensor:
    """To nearest even in float4, two numbers in a byte."""
    size = values.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    codes = ((torch.round(size / step) * step).unsqueeze(-1) == FLOAT4).int().argmax(-1).to(torch.uint8)
    codes = codes + 8 * torch.signbit(values).to(torch.uint8)
    return codes[..., ::2] + 16 * codes[..., 1::2]


def unpack(packed: Tensor) -> Tensor:
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    return FLOAT4[(codes & 7).long()] * (1.0 - 2.0 * (codes >> 3))


@dataclass(frozen=True)
class Recipe:
    """`kind` is mxfp8, nvfp4, fp8-tensor or fp8-row."""

    kind: str
    gradients: Any = E4M3


def block_of(kind: str, shape: Any) -> tuple[int, int]:
    return {"mxfp8": (1, 32), "nvfp4": (1, 16), "fp8-row": (1, shape[1]), "fp8-tensor": tuple(shape)}[kind]


def quantise(matrix: Tensor, kind: str, dtype: Any = E4M3, axis: int = 1, amax: Optional[Tensor] = None) -> Any:
    """Blocks along `axis`. `amax` has largest magnitudes that are not those of the matrix."""
    if axis == 0:
        turned = quantise(matrix.T, kind, dtype, 1, amax)
        qdata = turned.qdata if turned.qdata.dtype != torch.uint8 else pack(unpack(turned.qdata).T.contiguous())
        qdata = qdata.T if turned.qdata.dtype != torch.uint8 else qdata
        return Quantised(
            qdata, turned.scale.T if turned.scale.dim() else turned.scale, matrix.shape, turned.per_tensor_scale
        )
    rows, columns = block_of(kind, matrix.shape)
    blocks = matrix.reshape(matrix.shape[0] // rows, rows, matrix.shape[1] // columns, columns)
    most = blocks.abs().amax((1, 3)) if amax is None else amax
    largest = torch.finfo(dtype).max
    if kind == "mxfp8":
        scale = torch.exp2(torch.floor(torch.log2(most.clamp(min=1e-30))) - math.floor(math.log2(largest)))
        stored, whole = scale.to(E8M0), None
    elif kind == "nvfp4":
        whole = most.max().clamp(min=1e-30) / (448.0 * 6.0)
        stored = (most / 6.0 / whole).to(E4M3)
        scale = stored.float() * whole
    else:
        stored, whole = (most / largest).clamp(min=1e-30), None
        scale = stored
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    elements = torch.where(spread > 0, matrix / spread, 0.0)
    qdata = pack(elements) if kind == "nvfp4" else elements.clamp(-largest, largest).to(dtype)
    return Quantised(qdata, stored if stored.numel() > 1 else stored.reshape(()), matrix.shape, whole)


Wrong = Callable[..., Any]
"""(matrix, recipe, dtype, axis) -> a quantised tensor."""


@dataclass
class Plan:
    """Faults of one Linear: `wrong[role]` replaces `quantise`, `product` changes a result, `keep` quantises nothing."""

    wrong: dict[str, Wrong] = field(default_factory=dict)
    product: dict[str, Callable[..., Tensor]] = field(default_factory=dict)
    keep: bool = False


class Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: Recipe, plan: Plan) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe, ctx.plan = recipe, plan
        left, right = make(x, INPUTS, ctx, 1), make(weight, WEIGHTS, ctx, 1)
        return finish(torch.nn.functional.linear(left, right), "output", ctx, left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        one = make(gradient, GRADIENTS, ctx, 1), make(weight, WEIGHTS, ctx, 0)
        two = make(gradient.T, GRADIENTS, ctx, 1), make(x, INPUTS, ctx, 0)
        of_x = finish(torch.mm(*one), "of_x", ctx, *one)
        of_weight = finish(torch.mm(*two), "of_weight", ctx, *two)
        return of_x, of_weight, None, None


def make(matrix: Tensor, role: str, ctx: Any, axis: int) -> Any:
    dtype = ctx.recipe.gradients if role == GRADIENTS else E4M3
    wrong = ctx.plan.wrong.get(role)
    matrix = matrix.detach().contiguous()
    if wrong is not None:
        return wrong(matrix, ctx.recipe, dtype, axis)
    return quantise(matrix, ctx.recipe.kind, dtype, axis)


def finish(result: Tensor, which: str, ctx: Any, left: Any, right: Any) -> Tensor:
    change = ctx.plan.product.get(which)
    return result if change is None else change(result, left, right)


class QuantisedLinear(nn.Linear):
    recipe: Optional[Recipe] = None
    plan = Plan()

    def forward(self, x: Tensor) -> Tensor:
        if self.recipe is None or self.plan.keep:
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1])
        y = Products.apply(flat, self.weight, self.recipe, self.plan)
        return (y + self.bias).reshape(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = QuantisedLinear(width, 2 * width), QuantisedLinear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(seed: int, recipe: Optional[Recipe], width: int = 64, depth: int = 3) -> Model:
    torch.manual_seed(seed)
    model = Model(width, depth)
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            module.recipe = recipe
            module.plan = Plan()
    return model


def train(model: Model, seed: int, steps: int, debugger: Any = None, width: int = 64) -> list[float]:
    """The losses. The debugger records every step."""
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, width, generator=generator)
        wanted = x[:, :8].roll(1, 1)
        if debugger is not None:
            debugger.start(model)
        loss = (model(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        losses.append(float(loss.detach()))
    return losses
