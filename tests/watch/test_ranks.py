"""Real ranks over gloo: DDP with gradients before and after reduction, FSDP2 with norms of the complete tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gloo
from msprobe.watch.reading.run import Run
from msprobe.watch.reading.shards import global_norms

SCRIPT = Path(__file__).with_name("train_ranks.py")


def torchrun(path, kind):
    done = gloo.ranks(SCRIPT, path, kind)
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


def test_a_rank_that_starts_with_another_seed_is_named(tmp_path):
    torchrun(tmp_path, "seeds")
    found = Run(tmp_path).alarms()
    assert {alarm.rule for alarm in found} == {"ranks"}
    assert (found[0].step, found[0].target) == (0, "weight/0.weight")  # of two ranks none is the odd one
    assert "on rank 0" in found[0].sentence
    assert "on rank 1" in found[0].sentence
    assert "a different seed?" in found[0].sentence


def numbers(printed, word):
    return [float(one) for one in re.findall(r"[-+.\de]+", printed.split(word)[1].splitlines()[0])]


@pytest.mark.parametrize("kind", ["fsdp", "tp"])
def test_a_spread_tensor_has_its_complete_norm_without_a_collective(kind, tmp_path):
    bare, _ = torchrun("-", kind)
    watched, printed = torchrun(tmp_path, kind)
    assert watched == bare
    assert numbers(printed, "collectives") == [0]
    run = Run(tmp_path)
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    complete = {(kind, name): norm for step, kind, name, norm in global_norms(run) if step == 3}
    for kind_of, word in (("weight", "norms"), ("grad", "gradients")):
        for name, expected in zip(names, numbers(printed, word)):
            found = complete.get((kind_of, name))
            if found is None:  # every rank has all of it
                found = run.ranks[0].curve(kind_of, name, "norm")[1][3]
            assert found == pytest.approx(expected, rel=1e-5), (kind_of, name)
    assert len(complete) >= 3 * 4
    before, after = (complete[kind_of, "0.weight"] for kind_of in ("grad_before_clip", "grad"))
    assert after < 0.5 * before
