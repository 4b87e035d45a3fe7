"""Real ranks over gloo: DDP with gradients before and after reduction, FSDP2 with norms of the complete tensors."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import gloo
from msprobe.watch.reading.run import Run
from msprobe.watch.reading.shards import global_norms

SCRIPT = Path(__file__).with_name("train_ranks.py")


def torchrun(path, kind):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    done = gloo.run([*command, str(path), kind], timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return sorted(re.findall(r"rank \d -?0x[0-9a-f.]+p[+-]\d+", done.stdout)), done.stdout


def test_ddp_is_untouched_and_its_ranks_are_checked(tmp_path):
    bare, _ = torchrun("-", "ddp")
    watched, _ = torchrun(tmp_path, "ddp")
    assert watched == bare
    run = Run(tmp_path)
    first, second = (rank.curve("grad", "0.weight", "norm")[1] for rank in run.ranks)
    assert first[:3].tolist() == second[:3].tolist()
    first, second = (rank.curve("grad_before_clip", "0.weight", "norm")[1] for rank in run.ranks)
    assert first[:3].tolist() == second[:3].tolist()
    found = run.alarms()
    assert [(alarm.step, alarm.rule, alarm.target) for alarm in found if alarm.rule == "ranks"] == [
        (3, "ranks", "weight/0.weight")
    ]


def test_fsdp_has_the_norms_of_the_complete_tensors(tmp_path):
    bare, _ = torchrun("-", "fsdp")
    watched, printed = torchrun(tmp_path, "fsdp")
    assert watched == bare
    expected = [float(word) for word in re.findall(r"\d+\.\d+", printed.split("norms")[1].splitlines()[0])]
    found = {name: norm for step, kind, name, norm in global_norms(Run(tmp_path)) if (step, kind) == (3, "weight")}
    assert list(found.values()) == pytest.approx(expected, rel=1e-5)
