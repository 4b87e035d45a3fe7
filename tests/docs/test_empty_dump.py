"""The guide's table "The dump is empty, why?": each sentence is one that msprobe really says in that situation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .documents import ROOT

MAKE = """
import json, torch
from msprobe.pytorch import PrecisionDebugger

def debugger(**settings):
    with open("config.json", "w") as file:
        json.dump({"dump_path": "./dump", **settings}, file)
    return PrecisionDebugger("config.json")

"""
NEVER_STARTED = MAKE + 'debugger(level="L1")'
SITUATIONS = (
    MAKE
    + """
debugger(rank=[0]).start()
late = debugger(step=[10])
late.start()
late.step()
listed = debugger(task="statistics", statistics={"list": ["rleu"]})
listed.start()
torch.relu(torch.ones(1))
saving = debugger(task="statistics", statistics={"tensor_list": ["rleu"]})
saving.start()
torch.relu(torch.ones(1))
turned = debugger(task="statistics", statistics={"scope": ["Torch.tanh.0.forward", "Torch.relu.0.forward"]})
turned.start()
torch.tanh(torch.relu(torch.ones(1)))
nowhere = debugger(dump_path="./" + "x" * 300)
nowhere.start()
torch.relu(torch.ones(1))
idle = debugger(extra_info=False)
idle.start()
try:
    debugger(level="mix").start()
except ValueError as error:
    print(error)
"""
)


def test_the_guide_quotes_what_is_said(tmp_path: Path) -> None:
    environment = {**os.environ, "RANK": "2", "WORLD_SIZE": "3"}
    done, never = (
        subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )
        for script in (SITUATIONS, NEVER_STARTED)
    )  # fmt: skip
    (tmp_path / "idle.py").write_text("import torch")
    idle = subprocess.run(
        [sys.executable, "-m", "msprobe", "run", "idle.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    said = done.stdout + never.stdout + idle.stderr
    for guide in ("docs/guide.md", "docs/zh/guide.md"):
        table = (ROOT / guide).read_text(encoding="utf-8").rpartition("|---|---|\n")[2]
        sentences = re.findall(r"^\| `(.*?)` \|", table, re.M)
        assert len(sentences) == 10
        assert [sentence for sentence in sentences if sentence not in said] == [], said
