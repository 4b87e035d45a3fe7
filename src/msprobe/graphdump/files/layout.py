"""Converts Ascend's storage layouts to common layouts, exactly, and removes the padding.

A blocked layout splits a logical axis X into X1 blocks of X0 elements and pads the last block. Each layout is one row
of axis names. So every conversion has the same three steps: reshape to the stored axes, move each X1 next to its X0,
merge the two and cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Optional

import numpy.typing as npt

Shape = tuple[int, ...]

PLAIN = ("NCHW", "NHWC", "HWCN", "NCDHW", "NDHWC", "DHWCN")
BLOCKED = {
    "NC1HWC0": ("N", "C1", "H", "W", "C0"),
    "FRACTAL_Z": ("C1", "H", "W", "N1", "N0", "C0"),
    "NDC1HWC0": ("N", "D", "C1", "H", "W", "C0"),
    "FRACTAL_Z_3D": ("D", "C1", "H", "W", "N1", "N0", "C0"),
}
# The possible axes of a shape with fewer dimensions than the layout; the missing axes have size 1.
_SHORT = {1: ("C",), 2: ("NC", "CH"), 3: ("CHW", "NCH")}


class LayoutError(ValueError):
    """The conversion is not defined, or the original shape does not fit the stored shape."""


def convert(
    stored: npt.NDArray[Any],
    source: str,
    target: str,
    original: Optional[Shape] = None,
    original_format: Optional[str] = None,
) -> npt.NDArray[Any]:
    """Converts `stored` (device shape, format `source`) to format `target`. `original` is the logical shape.

    A plain tensor with another number of dimensions than its format (a bias in NCHW) and a tensor without a format
    (ND) are returned unchanged. The result may be a view.
    """
    if source in (target, "ND") or (source in PLAIN and stored.ndim != len(source)):
        return stored
    if stored.size == 0:
        raise LayoutError(f"an empty tensor in {source} has no layout to convert")
    if source == "FRACTAL_NZ":
        return _from_nz(stored, target, original, original_format)
    axes = BLOCKED.get(source, tuple(source))
    if (source not in BLOCKED and source not in PLAIN) or set(target) != {axis[0] for axis in axes}:
        raise LayoutError(f"{source} cannot be converted to {target}")
    if source in PLAIN:
        return stored.transpose([source.index(letter) for letter in target])
    split, sizes = _split(stored.shape, axes, source, original, original_format)
    return _merge(stored.reshape(split), axes, target, sizes)


def _merge(stored: npt.NDArray[Any], axes: tuple[str, ...], target: str, sizes: dict[str, int]) -> npt.NDArray[Any]:
    order: list[int] = []
    padded: list[int] = []
    for letter in target:
        parts = [axes.index(letter)] if letter in axes else [axes.index(letter + "1"), axes.index(letter + "0")]
        order += parts
        padded.append(math.prod(stored.shape[part] for part in parts))
    merged = stored.transpose(order).reshape(padded)
    return merged[tuple(slice(sizes[letter]) for letter in target)]


def _split(
    stored: Shape,
    axes: tuple[str, ...],
    source: str,
    original: Optional[Shape],
    original_format: Optional[str],
) -> tuple[Shape, dict[str, int]]:
    """The stored shape with one dimension per axis, and the size of each logical axis without padding."""
    merged = len(axes) - 3 if source.startswith("FRACTAL") else 1  # the axes that the first dimension holds
    if len(stored) != len(axes) - merged + 1:
        raise LayoutError(
            f"{source} has {len(axes) - merged + 1} dimensions, the stored shape {stored} has {len(stored)}"
        )
    if original is None:
        if merged > 1:
            raise LayoutError(f"{source} needs the original shape: give it with -s")
        return stored, _padded_sizes(stored, axes)
    for sizes in _readings(original, source, axes, original_format):
        expected = {axis: sizes[axis] for axis in axes if len(axis) == 1}
        for axis, size in zip(axes[merged:], stored[1:]):
            if axis.endswith("0"):
                expected[axis] = size
                expected[axis[0] + "1"] = -(-sizes[axis[0]] // size) if size else 0
        split = tuple(expected[axis] for axis in axes)
        if math.prod(split[:merged]) == stored[0] and split[merged:] == stored[1:]:
            return split, sizes
    raise LayoutError(f"{source} of stored shape {stored} cannot hold the original shape {original}")


def _padded_sizes(stored: Shape, axes: tuple[str, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for axis, size in zip(axes, stored):
        sizes[axis[0]] = sizes.get(axis[0], 1) * size
    return sizes


def _readings(
    original: Shape, source: str, axes: tuple[str, ...], original_format: Optional[str]
) -> Iterator[dict[str, int]]:
    """The possible axis sizes for the original shape: the declared format first, then NCHW."""
    letters = {axis[0] for axis in axes}
    orders = [order for order in (original_format, *PLAIN) if order in PLAIN and set(order) == letters]
    if len(original) < len(letters):
        orders = list(_SHORT.get(len(original), ()))
    for order in orders:
        if order is not None and len(order) == len(original):
            yield {**dict.fromkeys(letters, 1), **dict(zip(order, original))}


def _from_nz(
    stored: npt.NDArray[Any], target: str, original: Optional[Shape], original_format: Optional[str]
) -> npt.NDArray[Any]:
    """Converts (…, N1, M1, M0, N0) to the matrix (…, M, N), and to `target` if the original has named axes."""
    if stored.ndim < 4:
        raise LayoutError(f"FRACTAL_NZ has at least 4 dimensions, the stored shape {stored.shape} has {stored.ndim}")
    *batch, n1, m1, m0, n0 = stored.shape
    leading = tuple(range(len(batch)))
    order = (*leading, *(len(batch) + axis for axis in (1, 2, 0, 3)))
    matrix = stored.transpose(order).reshape((*batch, m1 * m0, n1 * n0))
    if original is None:
        return matrix
    shape = original if len(original) > 1 else (1, *original) if original else (1, 1)
    fits = shape[:-2] == tuple(batch) or math.prod(shape[:-2]) == math.prod(batch)
    blocks = (-(-shape[-2] // m0) if m0 else 0, -(-shape[-1] // n0) if n0 else 0)
    if not fits or blocks != (m1, n1):
        raise LayoutError(f"FRACTAL_NZ of stored shape {stored.shape} cannot hold the original shape {original}")
    cut = matrix[..., : shape[-2], : shape[-1]].reshape(original)
    if original_format in PLAIN and target in PLAIN and original_format != target:
        return convert(cut, original_format, target)
    return cut
