"""What a format keeps of a matrix, as torch operators on any device: the same numbers as msprobe.stats.formats."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.nn.functional import pad

from msprobe.stats.formats import (
    CEIL,
    E4M3,
    E4M3_SCALE,
    E8M0,
    EVEN,
    POWER,
    RCEIL,
    Element,
    Format,
    block_of,
)
from msprobe.stats.stochastic import RANGE, draw

Tensor = Any


def fake_quantise(matrix: Tensor, form: Format, weight: bool = False, seed: Optional[int] = None) -> Tensor:
    """The matrix with what the format loses lost, as float32. Blocks are along the rows; give `matrix.T` for the other
    orientation. NaN and infinity stay. With a seed the elements are rounded stochastically."""
    wide = matrix.to(torch.float32)
    noise = None if seed is None else _noise(wide, seed)
    if form.scale is None:
        return _cast(wide.to(torch.float64), form.element, noise).to(torch.float32)
    rows, columns = block_of(tuple(wide.shape), form, weight)
    high, wide_by = wide.shape
    edges = (0, -wide_by % columns, 0, -high % rows)
    padded = pad(wide, edges)
    cut = (padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    blocks = padded.reshape(cut)
    scales = _scales(blocks.abs().amax(dim=(1, 3), keepdim=True).to(torch.float64), form)
    largest = form.element.largest
    scaled = torch.where(scales > 0, blocks.to(torch.float64) / scales, 0.0).to(torch.float32)
    noise = None if noise is None else pad(noise, edges).reshape(cut)
    kept = _cast(scaled.to(torch.float64).clamp(-largest, largest), form.element, noise) * scales
    return kept.reshape(padded.shape)[:high, :wide_by].to(torch.float32)


def _noise(matrix: Tensor, seed: int) -> Tensor:
    places = torch.arange(matrix.numel(), dtype=torch.int64, device=matrix.device)
    return draw(places, seed).to(torch.float64).reshape(matrix.shape) / RANGE


def _cast(values: Tensor, element: Element, noise: Optional[Tensor] = None) -> Tensor:
    exponents = torch.frexp(values).exponent - 1
    steps = torch.ldexp(torch.ones_like(values), exponents.clamp(min=element.lowest) - element.mantissa)
    counts = values / steps
    whole = torch.round(counts) if noise is None else torch.floor(counts.abs() + noise).copysign(counts)
    rounded = whole * steps
    beyond = float("inf") if element.has_inf else element.largest
    limited = torch.where(rounded.abs() > element.largest, torch.full_like(rounded, beyond).copysign(rounded), rounded)
    return torch.where(torch.isfinite(values), limited, values)


def _scales(most: Tensor, form: Format) -> Tensor:
    limit = form.element.largest
    one = torch.ones_like(most)
    if form.scale == E8M0:
        return torch.ldexp(one, _mx_exponents(most, form))
    if form.scale == E4M3_SCALE:
        whole = (most.max() / (E4M3.largest * limit)).to(torch.float32).to(torch.float64)
        whole = torch.where(whole > 0, whole, 1.0)
        return _cast((most / limit / whole).to(torch.float32).to(torch.float64), E4M3) * whole
    scales = torch.where(most > 0, most / limit, 1.0)
    if form.scale == POWER:
        return torch.ldexp(one, _ceil_log2(scales).clamp(-126, 127))
    return scales.clamp(2.0**-126, torch.finfo(torch.float32).max).to(torch.float32).to(torch.float64)


def _mx_exponents(most: Tensor, form: Format) -> Tensor:
    element = form.element
    known = torch.where(most > 0, most, 2.0**-149)
    if form.mode == RCEIL:
        found = _ceil_log2(known / element.largest)
    elif form.mode == CEIL:
        found = _ceil_log2(known) - element.highest
    else:
        parts: Any = torch.frexp(known)
        exponents = parts.exponent
        if form.mode == EVEN:
            exponents = exponents + (parts.mantissa + 2.0 ** -(element.mantissa + 2) >= 1.0).to(exponents.dtype)
        found = exponents - 1 - element.highest
    return found.clamp(-127, 127)


def _ceil_log2(values: Tensor) -> Tensor:
    parts: Any = torch.frexp(values)
    return torch.where(parts.mantissa == 0.5, parts.exponent - 1, parts.exponent)
