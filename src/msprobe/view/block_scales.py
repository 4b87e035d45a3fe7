"""The scales that a low-precision format gives to the blocks of a saved tensor, as a picture."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.stats.formats import BY_NAME, TABLE, block_of, block_scales, largest_of_blocks

Array = np.ndarray[Any, Any]
FORMATS = tuple(form.name for form in TABLE if form.scale is not None)
ROWS, COLUMNS = "rows", "columns"
MOST_CELLS = 256


def picture(matrix: Array, name: str, along: str) -> dict[str, Any]:
    """At most MOST_CELLS by MOST_CELLS cells, each with the scale of a block and its largest magnitude. If there are
    more blocks, a cell has the one with the largest magnitude of `blocks` by `blocks`. Blocks of zeros have scale 0."""
    if name not in FORMATS:
        raise DumpError(f"{name[:40]!r} has no scales; choose from {', '.join(FORMATS)}.")
    if along not in (ROWS, COLUMNS):
        raise DumpError("Blocks are along rows or columns.")
    finite = np.where(np.isfinite(matrix), np.abs(matrix), 0.0).astype(np.float32)
    form = BY_NAME[name]
    turned = finite if along == ROWS else np.ascontiguousarray(finite.T)
    rows, columns = block_of(turned.shape, form, weight=False)
    largest = largest_of_blocks(turned, rows, columns).astype(np.float64)
    scales = np.where(largest > 0, block_scales(largest, form), 0.0)
    if along == COLUMNS:
        rows, columns, largest, scales = columns, rows, largest.T, scales.T
    each = -(-max(scales.shape) // MOST_CELLS)
    if each > 1:
        largest, scales = _thin(largest, scales, each)
    return {
        "height": scales.shape[0], "width": scales.shape[1], "block": [rows, columns], "blocks": each,
        "size": list(matrix.shape), "left_out": int(np.count_nonzero(~np.isfinite(matrix))),
        "scales": _packed(scales), "largest": _packed(largest),
    }  # fmt: skip


def _thin(largest: Array, scales: Array, each: int) -> tuple[Array, Array]:
    starts = [np.arange(0, length, each) for length in largest.shape]
    groups = [(slice(y, y + each), slice(x, x + each)) for y in starts[0] for x in starts[1]]
    places = [int(np.argmax(largest[group])) for group in groups]
    shape = (len(starts[0]), len(starts[1]))
    picked = [[whole[group].flat[place] for group, place in zip(groups, places)] for whole in (largest, scales)]
    return np.array(picked[0]).reshape(shape), np.array(picked[1]).reshape(shape)


def _packed(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype("<f4").tobytes()).decode()
