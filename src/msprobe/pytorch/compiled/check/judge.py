"""More than rounding? Compares a compiled value with the eager one, both measured against fp64.

A value is wrong if its error is larger than four times the eager error and larger than the rounding of its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch

from msprobe.messages import Message

TIMES_EAGER = 4.0
TIMES_EAGER_AT_ONE_PLACE = 16.0
# How many roundings of the dtype compiled code may be off if the eager code happens to be exact.
ROUNDINGS = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 16.0, torch.float64: 4096.0}
PART_OF_GROUP = 0.1  # a value that is zero except for rounding is measured with the others of its kind


@dataclass(frozen=True)
class Verdict:
    """The verdict on one value. Errors are relative to the size of the fp64 value."""

    name: str
    compiled_error: float
    eager_error: float
    limit: float
    wrong: bool
    same: bool
    """Compiled and eager are bit-identical."""
    why: str = ""

    @property
    def nearer(self) -> bool:
        return not self.same and self.compiled_error < self.eager_error

    @property
    def factor(self) -> float:
        """The error as a multiple of its limit."""
        return self.compiled_error / self.limit if self.limit > 0 else math.inf


def judge_all(
    compiled: Mapping[str, Any], eager: Mapping[str, Any], reference: Mapping[str, Any]
) -> dict[str, Verdict]:
    """The verdict on each value that all three runs have. A value that only one of them has is wrong."""
    group = max((_rms(value) for value in reference.values() if _is_float(value)), default=0.0)
    verdicts = {}
    for name, expected in eager.items():
        found = compiled.get(name)
        if found is None:
            verdicts[name] = _wrong(name, Message("compiled.not_returned"))
            continue
        verdicts[name] = judge(name, found, expected, reference.get(name), group * PART_OF_GROUP)
    return verdicts


def judge(name: str, compiled: Any, eager: Any, reference: Any, smallest_scale: float = 0.0) -> Verdict:
    compiled, eager = compiled.detach(), eager.detach()
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return _wrong(name, Message("compiled.other_form", own=_describe(compiled), eager=_describe(eager)))
    if _same(compiled, eager):
        return Verdict(name, 0.0, 0.0, 0.0, wrong=False, same=True)
    if not _is_float(eager):
        return _judge_discrete(name, compiled, eager, reference)
    limit = ROUNDINGS.get(eager.dtype, 2.0) * torch.finfo(eager.dtype).eps
    c, e, r = (torch.view_as_real(v) if v.is_complex() else v for v in (compiled, eager, reference.detach()))
    c, e, r = c.double(), e.double(), r.double()
    broken = _nonfinite(name, c, e, r)
    if broken is not None:
        return broken
    known = torch.isfinite(r) & torch.isfinite(e) & torch.isfinite(c)
    if not bool(known.any()):
        return Verdict(name, 0.0, 0.0, limit, wrong=False, same=False)
    c, e, r = c[known], e[known], r[known]
    scale = max(_rms(r), smallest_scale, torch.finfo(torch.float64).tiny)
    compiled_error, eager_error = _rms(c - r) / scale, _rms(e - r) / scale
    allowed = max(TIMES_EAGER * eager_error, limit)
    top = max(float(r.abs().max()), scale)
    worst, worst_eager = float((c - r).abs().max()) / top, float((e - r).abs().max()) / top
    allowed_worst = max(TIMES_EAGER_AT_ONE_PLACE * worst_eager, 4 * limit)
    if compiled_error <= allowed and worst > allowed_worst:
        return Verdict(
            name, worst, worst_eager, allowed_worst, wrong=True, same=False, why=Message("compiled.single_places")
        )
    return Verdict(name, compiled_error, eager_error, allowed, compiled_error > allowed, same=False)


def _judge_discrete(name: str, compiled: Any, eager: Any, reference: Any) -> Verdict:
    """Integers and booleans have no rounding, but may be computed from values that have."""
    differ = float((compiled != eager).double().mean())
    off = differ if reference is None else float((eager != reference).double().mean())
    wrong = differ > max(2 * off, 0.0)
    return Verdict(name, differ, off, max(2 * off, 0.0), wrong, same=False, why=Message("compiled.discrete"))


def _nonfinite(name: str, c: Any, e: Any, r: Any) -> Optional[Verdict]:
    bad = ~torch.isfinite(c) & torch.isfinite(e) & torch.isfinite(r)
    if bool(bad.any()):
        return _wrong(name, Message("compiled.not_finite", number=int(bad.sum())))
    return None


def _wrong(name: str, why: str) -> Verdict:
    return Verdict(name, math.inf, 0.0, 0.0, wrong=True, same=False, why=why)


def _same(a: Any, b: Any) -> bool:
    return bool(torch.equal(a, b)) or (_is_float(a) and bool(((a == b) | (a.isnan() & b.isnan())).all()))


def _is_float(value: Any) -> bool:
    return value.is_floating_point() or value.is_complex()


def _describe(value: Any) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _rms(value: Any) -> float:
    if not value.numel():
        return 0.0
    value = value.detach()
    value = (torch.view_as_real(value) if value.is_complex() else value).double()
    value = value[torch.isfinite(value)]
    return float(value.square().mean().sqrt()) if value.numel() else 0.0
