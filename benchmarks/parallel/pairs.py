"""Layouts against each other: each is right against one device, so the two must agree, and a fault in one is named."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.parallel.cases import FAULTS, Case

_AGAINST = {
    "tensor2": ("tensor4",),
    "tensor4": ("tensor2",),
    "data2_tensor2": ("pipeline2_tensor2",),
    "pipeline2_tensor2": ("data2_tensor2",),
    "fsdp2": ("ddp2",),
    "ddp2": ("fsdp2",),
}
_CLEAN = (
    Case("sequence2", golden="tensor2"),
    Case("pipeline2", golden="tensor2"),
    Case("context2", golden="tensor2"),
    Case("hsdp4", golden="fsdp2"),
    Case("tp2", golden="fsdp2_tp2"),
)


def _where(case: Case) -> str:
    """Two runs that both cut the batch do it by the same call, `part_of`: there it has the wrong part already."""
    return rf"{case.where}|Tensor\.contiguous" if case.fault == "same_data_on_every_rank" else case.where


def _pairs() -> list[Case]:
    clean = [Case(layout, golden=golden) for layout, others in _AGAINST.items() for golden in others]
    planted = [
        replace(case, golden=golden, where=_where(case))
        for case in FAULTS
        if case.layout in _AGAINST
        for golden in _AGAINST[case.layout]
    ]
    return [*clean, *_CLEAN, *planted]


PAIRS = tuple(_pairs())
"""Every fault of these layouts is compared with another layout too; where it is named does not depend on that."""
