"""`msprobe prove` where the wrong line runs many times: a loop, or the same layer in every block."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
from torch import nn

wrong = len(sys.argv) > 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8, eps=1e-2 if wrong else 1e-5), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.norm(x))


torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(2, 4, 8):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_the_same_layer_in_every_block_is_one_cause(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "msprobe", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("run", "-o", "golden", "--task", "tensor", "train.py").returncode == 0
    done = run("prove", "--json", "--golden", "golden", "--most", "1", "train.py", "wrong")
    assert done.returncode == 0, done.stderr
    proof = json.loads(done.stdout.splitlines()[-1])
    (cause,) = proof["causes"]
    assert proof["verdict"] == "proved"
    assert (cause["name"], cause["calls"]) == ("Functional.layer_norm.0.forward", 5)
    assert cause["source"].endswith("in forward")
    assert done.stderr.count("run ") == 3
