"""Sums in a different order, written as other calls: the same module with other innards is the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
import torch.nn.functional as F

from msprobe.compare import compare


def _in_two_parts(self: Any, x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    total = x[..., :half] @ self.weight[:, :half].t() + x[..., half:] @ self.weight[:, half:].t()
    return total if self.bias is None else total + self.bias


def _backwards(self: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x.flip(-1), self.weight.flip(-1), self.bias)


def _in_float64(self: Any, x: torch.Tensor) -> torch.Tensor:
    bias = None if self.bias is None else self.bias.double()
    return F.linear(x.double(), self.weight.double(), bias).float()


@pytest.mark.parametrize("linear", [_in_two_parts, _backwards, _in_float64])
@pytest.mark.parametrize("options", [{}, {"level": "L0"}, {"summary": "md5"}, {"task": "tensor"}], ids=str)
@pytest.mark.parametrize("kind", ["transformer", "mixture"])
def test_another_order_of_summation_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], linear: Any
) -> None:
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    golden = planted.run(kind, tmp_path / "golden", **options)
    monkeypatch.setattr(torch.nn.Linear, "forward", linear)
    result = compare(planted.run(kind, tmp_path / "target", **options), golden)
    bad = [(row.name, row.reason, row.distance) for _, row in result.rows() if row.verdict in ("warning", "error")]
    assert not bad
    assert result.verdict == "same"
