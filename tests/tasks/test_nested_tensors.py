"""A nested tensor has no shape to compare a second run by: free_benchmark leaves it alone, without an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from msprobe.pytorch import PrecisionDebugger


@pytest.mark.filterwarnings("ignore")
def test_free_benchmark_leaves_nested_tensors_alone(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="free_benchmark", level="L1")
    debugger.start()
    doubled = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2
    assert torch.equal(torch.ones(2) * 2, doubled.unbind()[0])
    debugger.stop()
    debugger.step()
    assert not list(tmp_path.rglob("dump_error_info.log"))
