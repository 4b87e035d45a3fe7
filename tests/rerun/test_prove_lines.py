"""`msprobe prove` where the wrong line runs many times: a loop, or the same layer in every block."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from torch import nn

eps = 1e-2 if "eps" in sys.argv else 1e-5


class Block(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(8, eps=eps), nn.Linear(8, 8), nn.LeakyReLU(slope)

    def forward(self, x):
        return self.act(self.linear(self.norm(x)))


torch.manual_seed(0)
model = nn.Sequential(*(Block(0.5 if "slope" in sys.argv and n == 1 else 0.01) for n in range(5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(2, 4, 8):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lines")
    (directory / "train.py").write_text(SCRIPT)
    done = _run(directory, "run", "-o", "golden", "--task", "tensor", "train.py")
    assert done.returncode == 0, done.stderr
    return directory


def _run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msprobe", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_the_same_layer_in_every_block_is_one_cause(place: Path) -> None:
    done = _run(place, "prove", "--json", "--golden", "golden", "--most", "1", "train.py", "eps")
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout.splitlines()[-1])
    (cause,) = proof["causes"]
    assert proof["verdict"] == "proved"
    assert (cause["name"], cause["calls"]) == ("Functional.layer_norm.0.forward", 5)
    assert cause["source"].endswith("in forward")
    assert done.stderr.count("run ") == 3
    assert "kept the own result" not in done.stderr


@pytest.mark.slow
def test_a_second_fault_between_two_calls_of_a_line_is_not_counted_to_the_first(place: Path) -> None:
    """The golden results of the later LayerNorms would hide what the second fault does to the loss."""
    done = _run(place, "prove", "--json", "--golden", "golden", "train.py", "eps", "slope")
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout.splitlines()[-1])
    first, second = proof["causes"]
    assert (first["name"], first["calls"]) == ("Functional.layer_norm.0.forward", 5)
    assert second["name"] == "Functional.leaky_relu.1.forward"
    assert second["share"] > 0.9
    assert first["share"] + second["share"] == pytest.approx(1, abs=0.01)
    assert "kept the own result: a different argument has a cause of its own" in done.stderr
