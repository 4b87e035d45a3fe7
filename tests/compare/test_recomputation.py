"""Activation checkpointing on one side only: the same numbers are the same, and a fault is still found."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger


class Block(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.fc(self.norm(x)))
        return x + (y * 1.01 if self.wrong else y)


class Model(nn.Module):
    def __init__(self, reentrant: Optional[bool], wrong: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(wrong and index == 1) for index in range(3))
        self.out = nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.out(x)


def run(path: Path, level: str, reentrant: Optional[bool], wrong: bool = False) -> Path:
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = Model(reentrant, wrong)
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    path.mkdir(parents=True)
    config = path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": str(path / "dump"), "step": [0]}))
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    model(data).square().mean().backward()
    debugger.stop()
    debugger.step()
    return path / "dump"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_run_is_the_same_as_a_plain_one(tmp_path: Path, level: str, reentrant: bool) -> None:
    golden = run(tmp_path / "golden", level, None)
    result = compare(run(tmp_path / "target", level, reentrant), golden)
    assert result.verdict == "same", [(r.name, r.reason) for _, r in result.rows() if r.verdict != "pass"]
    assert result.reasons["recomputed"]
    backward = [row for _, row in result.rows() if row.match.call.direction == "backward"]
    assert sum(row.verdict == "pass" for row in backward) > 10


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_fault_in_a_recomputed_block_is_found(tmp_path: Path, reentrant: bool) -> None:
    golden = run(tmp_path / "golden", "mix", None)
    origin = compare(run(tmp_path / "target", "mix", reentrant, wrong=True), golden).origin
    assert origin is not None
    assert (origin.name, origin.module) == ("Tensor.__mul__.0.forward", "Module.blocks.1.Block")
