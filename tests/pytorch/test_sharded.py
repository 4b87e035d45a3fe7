"""FSDP2 and tensor parallel over gloo: what is not written yet is marked, gradients and collectives are recorded."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from collecting import Dump, configured

import gloo

SCRIPT = Path(__file__).with_name("train_sharded.py")


@functools.cache
def torchrun(*arguments):
    finished = gloo.ranks(SCRIPT, *arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module", params=["fsdp", "tp"])
def trained(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    return request.param, path / "dump", torchrun(request.param, configured(path, level="mix"))


def figures(value):
    """Everything in a record but what is marked, and the numbers: asynchronous collectives end in any order."""
    if isinstance(value, dict):
        if value.get("destination") or value.get("uninitialised"):
            return None
        return {key: figures(member) for key, member in value.items() if key not in ("value_id", "memory")}
    return [figures(member) for member in value] if isinstance(value, list) else value


def test_training_is_the_same_to_the_last_bit(trained):
    assert trained[2] == torchrun(trained[0])


def test_a_second_run_differs_in_nothing_but_what_is_marked(trained, tmp_path):
    kind, path, _ = trained
    torchrun(kind, configured(tmp_path, level="mix"))
    for rank in ("rank0", "rank1"):
        first, second = Dump(path, 0, rank), Dump(tmp_path / "dump", 0, rank)
        assert not first.errors
        assert repr(figures(first.data)) == repr(figures(second.data))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_parameter_has_its_local_gradient(trained, rank):
    expected = ast.literal_eval(trained[2])[rank][2]
    dump = Dump(trained[1], 0, f"rank{rank}")
    grads = {name: record for name, record in dump.data.items() if name.endswith("parameters_grad")}
    assert len(grads) == 2
    found = [grads[name][key][0] for name in sorted(grads) for key in ("weight", "bias")]
    assert [item["Norm"] for item in found] == pytest.approx(expected, rel=1e-6)
    assert all("local_shape" in item for item in found)


def test_a_functional_collective_is_read_after_the_wait(trained):
    kind, path, _ = trained
    if kind != "tp":
        pytest.skip("FSDP2 uses no functional collectives")
    sides = [Dump(path, 0, f"rank{rank}") for rank in (0, 1)]
    name = "Ops._c10d_functional.all_reduce.0.forward"
    given = [dump[name]["input_args"][0]["Mean"] for dump in sides]
    made = [dump[name]["output"][0]["Mean"] for dump in sides]
    assert made[0] == made[1] == pytest.approx(sum(given), rel=1e-5)
    module = sides[0]["Module.2.Linear.forward.0"]["output"][0]
    assert "AsyncCollectiveTensor" in module["type"]
    assert module["Mean"] == made[0]
    assert not [key for key in sides[0].data if "unreadable" in repr(sides[0].data[key])]
