"""Thirty faults of quantised training, and what a true answer names: written before the first comparison."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from benchmarks.low_precision.quantised_model import (
    E4M3,
    E5M2,
    GRADIENTS,
    INPUTS,
    WEIGHTS,
    Model,
    Plan,
    Quantised,
    Recipe,
    block_of,
    quantise,
)

MX, MX5 = Recipe("mxfp8"), Recipe("mxfp8", E5M2)
NV, TENSOR, ROW = Recipe("nvfp4"), Recipe("fp8-tensor"), Recipe("fp8-row")


@dataclass(frozen=True)
class Fault:
    """`module` and `role` must be named, and the sentence must have one of `words`."""

    name: str
    recipe: Recipe
    module: str
    role: str
    words: tuple[str, ...]
    plan: Callable[[], Plan] = Plan
    step: int = 0
    setup: Optional[Callable[[Model], None]] = None
    """Changes the model in both runs."""
    golden: Optional[Recipe] = field(default=None)


def changed(role: str, change: Callable[..., Any], axis: Optional[int] = None) -> Callable[[], Plan]:
    """Quantises as usual, then changes the tensor; with `axis` only where blocks are along it."""

    def wrong(matrix: Any, recipe: Recipe, dtype: Any, along: int) -> Any:
        if axis is not None and along != axis:
            return quantise(matrix, recipe.kind, dtype, along)
        return change(matrix, recipe, dtype, along)

    return lambda: Plan(wrong={role: wrong})


def stale(role: str) -> Callable[[], Plan]:
    def plan() -> Plan:
        known: dict[Any, Any] = {}

        def wrong(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
            side = matrix.T if axis == 0 else matrix
            rows, columns = block_of(recipe.kind, side.shape)
            blocks = side.reshape(side.shape[0] // rows, rows, side.shape[1] // columns, columns)
            most = blocks.abs().amax((1, 3))
            key = (tuple(matrix.shape), axis)
            before, known[key] = known.get(key, most), most
            return quantise(matrix, recipe.kind, dtype, axis, before)

        return Plan(wrong={role: wrong})

    return plan


def kind(name: str) -> Callable[..., Any]:
    return lambda matrix, recipe, dtype, axis: quantise(matrix, name, dtype, axis)


def one_scale(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
    """A scale per tensor of the same kind as those of the blocks."""
    side = matrix.T if axis == 0 else matrix
    rows, columns = block_of(recipe.kind, side.shape)
    most = side.abs().max().expand(side.shape[0] // rows, side.shape[1] // columns)
    made = quantise(matrix, recipe.kind, dtype, axis, most)
    return Quantised(made.qdata, made.scale.flatten()[0].reshape(()), matrix.shape, made.per_tensor_scale)


def other_axis(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
    return quantise(matrix, recipe.kind, dtype, 1 - axis)


def history(share: float) -> Callable[..., Any]:
    return lambda matrix, recipe, dtype, axis: quantise(
        matrix, recipe.kind, dtype, axis, (share * matrix.abs().max()).reshape(1, 1)
    )


def other_dtype(wrong: Any) -> Callable[..., Any]:
    return lambda matrix, recipe, dtype, axis: quantise(matrix, recipe.kind, wrong, axis)


def scales(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def wrong(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
        made = quantise(matrix, recipe.kind, dtype, axis)
        scale = change(made.scale.float()).contiguous()
        return Quantised(made.qdata, scale.to(made.scale.dtype), matrix.shape, made.per_tensor_scale)

    return wrong


def at_block(row: int, column: int, factor: float) -> Callable[[Any], Any]:
    def change(scale: Any) -> Any:
        scale = scale.clone()
        scale[row, column] *= factor
        return scale

    return change


def zero_block(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
    changed_matrix = matrix.clone()
    size = 32 if recipe.kind == "mxfp8" else 16
    if axis == 1:
        changed_matrix[2, :size] = 0
    else:
        changed_matrix[:size, 2] = 0
    return quantise(changed_matrix, recipe.kind, dtype, axis)


def twice(first: str, other: bool = False) -> Callable[..., Any]:
    def wrong(matrix: Any, recipe: Recipe, dtype: Any, axis: int) -> Any:
        once = quantise(matrix, first, dtype, 1 - axis if other else axis).dequantize()
        return quantise(once, recipe.kind, dtype, axis)

    return wrong


def unscaled(which: str) -> Callable[[], Plan]:
    return lambda: Plan(product={which: lambda result, left, right: result / left.scale})


def outliers(path: str) -> Callable[[Model], None]:
    def setup(model: Model) -> None:
        with torch.no_grad():
            model.get_parameter(path)[..., ::16] *= 400.0

    return setup


UP0, UP1, UP2, DOWN0, DOWN1, DOWN2 = (f"blocks.{i}.{name}" for name in ("up", "down") for i in range(3))
FAULTS = (
    Fault("scale of an input stale by one step", TENSOR, UP1, INPUTS, ("scale",), stale(INPUTS), 1),
    Fault("scale of a gradient stale by one step", TENSOR, DOWN0, GRADIENTS, ("scale", "cut off"), stale(GRADIENTS), 1),
    Fault("block scales of an input stale by one step", NV, UP0, INPUTS, ("scale", "cut off"), stale(INPUTS), 1),
    Fault("block scales of a gradient stale by one step", MX, UP2, GRADIENTS, ("scale", "cut off"), stale(GRADIENTS), 1),
    Fault("weight: per tensor, not per block", MX, DOWN1, WEIGHTS, ("one scale",), changed(WEIGHTS, one_scale)),
    Fault("input: per tensor, not per block", NV, UP1, INPUTS, ("one scale",), changed(INPUTS, one_scale)),
    Fault("gradient: per tensor, not per row", ROW, UP0, GRADIENTS, ("one scale",), changed(GRADIENTS, kind("fp8-tensor"))),
    Fault("input: wrong orientation in the backward", MX, UP1, INPUTS, ("axis",), changed(INPUTS, other_axis, 0)),
    Fault("weight: wrong orientation in the backward", NV, DOWN0, WEIGHTS, ("axis",), changed(WEIGHTS, other_axis, 0)),
    Fault("gradient: wrong orientation", MX, DOWN2, GRADIENTS, ("axis",), changed(GRADIENTS, other_axis)),
    Fault("saturated amax history of an input", TENSOR, UP1, INPUTS, ("cut off", "scale"), changed(INPUTS, history(0.3))),
    Fault("saturated amax history of a gradient", TENSOR, DOWN1, GRADIENTS, ("cut off",), changed(GRADIENTS, history(0.05))),
    Fault("weight: scales read transposed", NV, UP1, WEIGHTS, ("transposed",),
          changed(WEIGHTS, scales(lambda scale: scale.T.reshape(scale.shape)))),
    Fault("input: scales read transposed", NV, DOWN0, INPUTS, ("transposed",),
          changed(INPUTS, scales(lambda scale: scale.T.reshape(scale.shape)))),
    Fault("a block of a weight is zero", MX, DOWN2, WEIGHTS, ("block (2, 0) is zero",), changed(WEIGHTS, zero_block, 1)),
    Fault("a block of a gradient is zero", NV, UP1, GRADIENTS, ("is zero",), changed(GRADIENTS, zero_block)),
    Fault("a block of an input is zero", MX, UP0, INPUTS, ("block (2, 0) is zero",), changed(INPUTS, zero_block, 1)),
    Fault("outlier channels of an input", NV, UP1, INPUTS, ("outliers",), setup=outliers("blocks.1.norm.weight")),
    Fault("outlier channels of a weight", NV, DOWN1, WEIGHTS, ("outliers",), setup=outliers("blocks.1.down.weight")),
    Fault("gradient: e4m3, not e5m2", MX5, UP1, GRADIENTS, ("e4m3",), changed(GRADIENTS, other_dtype(E4M3))),
    Fault("input: e5m2, not e4m3", MX5, DOWN0, INPUTS, ("e5m2",), changed(INPUTS, other_dtype(E5M2))),
    Fault("output not unscaled", TENSOR, DOWN1, "the output", ("times as large",), unscaled("output")),
    Fault("gradient of the input not unscaled", TENSOR, UP2, "the gradient of the input", ("times as large",), unscaled("of_x")),
    Fault("gradient of the weight not unscaled", TENSOR, UP0, "the gradient of the weight", ("times as large",),
          unscaled("of_weight")),
    Fault("input rounded twice", MX, UP2, INPUTS, ("not the nearest",), changed(INPUTS, twice("nvfp4"))),
    Fault("gradient rounded twice", NV, DOWN1, GRADIENTS, ("not the nearest",), changed(GRADIENTS, twice("nvfp4", True))),
    Fault("scale of one block of a weight", MX, UP1, WEIGHTS, ("block (3, 0) is 512 times too small",),
          changed(WEIGHTS, scales(at_block(3, 0, 2.0**-9)), 1)),
    Fault("scale of one block of an input", NV, UP2, INPUTS, ("block (5, 1)",),
          changed(INPUTS, scales(at_block(5, 1, 2.0**-4)), 1)),
    Fault("wrong layer kept in high precision", MX, UP1, INPUTS, ("in the golden run",),
          lambda: Plan(keep=True), golden=MX),
    Fault("scales applied twice", ROW, DOWN2, INPUTS, ("scale",), changed(INPUTS, scales(lambda scale: scale * scale))),
)  # fmt: skip
CLEAN = ((MX, 0), (MX, 1), (MX5, 0), (MX5, 1), (NV, 0), (NV, 1), (TENSOR, 0), (TENSOR, 1), (ROW, 0), (ROW, 1))
"""Recipe and step of ten runs without a fault."""
