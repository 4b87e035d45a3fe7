"""overflow_check counts and names casts to float8 that limit what is too large: nothing else shows them."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from msprobe.pytorch import PrecisionDebugger

E4M3 = torch.float8_e4m3fn


class Cast(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(E4M3).float()


def check(tmp_path: Path, caplog: pytest.LogCaptureFixture, act: Callable[[], Any], level: str = "L1") -> str:
    """What overflow_check says at the end."""
    config = {"task": "overflow_check", "dump_path": str(tmp_path / "dump"), "level": level}
    config["overflow_check"] = {"overflow_nums": -1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(tmp_path / "config.json"))
    model = torch.nn.Linear(2, 2)
    with caplog.at_level(logging.INFO, "msprobe"):
        debugger.start(model)
        act()
        debugger.stop()
        debugger.step()
        debugger._lifecycle.close()
    return caplog.text


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: torch.tensor([1.0, 500.0, -1e6]).to(E4M3), "2 values in 1 cast to torch.float8_e4m3fn became 448 "),
        (lambda: torch.tensor([1.0, math.inf]).bfloat16().to(E4M3), "became 448 (1 infinite)"),
        (lambda: torch.tensor([1e4, 1.0]).type(E4M3), "Tensor.type.0.forward: 1 value in 1 cast"),
        (lambda: torch.zeros(2, dtype=E4M3).copy_(torch.tensor([600.0, 1.0])), "Tensor.copy_.0.forward: 1 value"),
        (lambda: Cast()(torch.full((4,), 1000.0)), "4 values in 1 cast to torch.float8_e4m3fn became 448 (up to 1000 "),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_a_saturating_cast_is_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, act: Callable[[], Any], says: str, grad: bool
) -> None:
    with torch.set_grad_enabled(grad):
        said = check(tmp_path, caplog, act)
    assert says in said
    assert "saturated in 1 cast; no NaN or infinity shows it" in said


@pytest.mark.parametrize(
    "act",
    [
        lambda: torch.tensor([448.0, -448.0, 0.5]).to(E4M3),
        lambda: torch.tensor([1e6]).to(torch.bfloat16),
        lambda: torch.tensor([448.0]).to(E4M3).to(torch.float32),
        lambda: torch.tensor([math.nan]).to(E4M3),
        lambda: torch.arange(4).to(E4M3),
    ],
)
def test_a_cast_that_fits_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, act: Callable[[], Any]
) -> None:
    assert "saturated" not in check(tmp_path, caplog, act)


def test_the_result_of_the_cast_is_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = torch.randn(64) * 1000
    found = []
    check(tmp_path, caplog, lambda: found.append(source.to(E4M3)))
    assert torch.equal(found[0].float(), source.to(E4M3).float())
