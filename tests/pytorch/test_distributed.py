"""Two real processes over gloo: a directory a rank, collectives recorded when they are done, DDP untouched."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from collecting import Dump, configured

import gloo

SCRIPT = Path(__file__).with_name("train_distributed.py")


def torchrun(*arguments):
    finished = gloo.ranks(SCRIPT, *arguments, MSPROBE_CHECK_CACHE="1")
    assert finished.returncode == 0, finished.stderr
    return finished


bare = functools.lru_cache(maxsize=None)(lambda: torchrun().stdout)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    path = tmp_path_factory.mktemp("ddp")
    finished = torchrun(configured(path, level="mix"))
    return path / "dump", finished


def values(record):
    return [part["Max"] for part in record]


def test_training_is_the_same_to_the_last_bit(dumped):
    assert dumped[1].stdout == bare()


@pytest.mark.parametrize("rank", [0, 1])
def test_every_collective_is_recorded_with_its_result(dumped, rank):
    dump = Dump(dumped[0], 0, f"rank{rank}")
    assert not dump.errors
    other = 1 - rank
    reduce = dump["Distributed.all_reduce.0.forward"]
    assert values(reduce["input_args"]) == [rank + 1]
    assert values(reduce["output"]) == [3]
    assert values(dump["Torch.relu.0.forward"]["input_args"]) == [rank + 1]
    assert values(dump["Torch.relu.1.forward"]["input_args"]) == [3]
    assert values(dump["Distributed.all_reduce.1.forward"]["output"]) == [3]
    assert values(dump["Distributed.irecv.0.forward"]["output"]) == [other + 5]
    assert values(dump["Torch.relu.2.forward"]["input_args"]) == [other + 5]
    assert values(dump["Distributed.all_gather.0.forward"]["output"][0]) == [7, 8]
    assert values(dump["Distributed.all_gather_into_tensor.0.forward"]["output"]) == [8]
    assert values(dump["Distributed.broadcast.0.forward"]["output"]) == [3]
    assert values(dump["Torch.relu.3.forward"]["input_args"]) == [other + 11]
    batched = [name for name in dump.names if "batch_isend_irecv" in name or name == "Distributed.irecv.1.forward"]
    assert any((other + 11) in _numbers(dump[name].get("output")) for name in batched), batched
    for number in (2, 3, 4, 5):
        record = dump[f"Distributed.all_reduce.{number}.forward"]
        assert record["not_waited"] is True
        assert "output" not in record
        assert "unfinished" not in record


def _numbers(value):
    if isinstance(value, list):
        return [number for member in value for number in _numbers(member)]
    return [value["Max"]] if isinstance(value, dict) and "Max" in value else []


@pytest.mark.parametrize("step", [0, 1])
def test_both_ranks_have_the_same_names_and_their_own_values(dumped, step):
    zero, one = (Dump(dumped[0], step, f"rank{rank}") for rank in (0, 1))
    assert zero.names == one.names
    assert "Module.0.Linear.backward.0" in zero.names
    assert "Module.3.Linear.parameters_grad" in zero.names
    assert zero["Module.0.Linear.forward.0"]["input_args"] != one["Module.0.Linear.forward.0"]["input_args"]


def test_the_rank_filter_collects_one_rank_and_logs_the_reason_on_the_other(tmp_path):
    finished = torchrun(configured(tmp_path, level="L0", rank=[1]))
    assert [path.name for path in (tmp_path / "dump" / "step0").iterdir()] == ["rank1"]
    assert finished.stderr.count("nothing was collected: this process is rank 0") == 1
