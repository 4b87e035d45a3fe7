"""An overflow that passes through a real collective is followed to its rank; one made inside it is reported as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collecting import configured

import gloo
from msprobe.cli import main

SCRIPT = Path(__file__).with_name("train_overflow.py")
PLANTS = {
    "on one rank": ("Torch.log.0.forward", 1),
    "inside": ("Distributed.all_reduce.0.forward", 0),
}


@pytest.mark.parametrize("task", ["overflow_check", "statistics"])
@pytest.mark.parametrize("plant", PLANTS)
def test_the_producer_is_found_over_two_ranks(tmp_path, plant, task, capsys):
    config = configured(tmp_path, task=task, section={"overflow_nums": -1} if task == "overflow_check" else None)
    done = gloo.ranks(SCRIPT, config, plant)
    assert done.returncode == 0, done.stderr
    assert main(["overflow", str(tmp_path / "dump"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["producer"]
    assert (found["name"], found["rank"]) == PLANTS[plant]
    assert "train_overflow.py" in found["source"]
