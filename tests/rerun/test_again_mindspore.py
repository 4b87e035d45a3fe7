"""`msprobe again` on MindSpore scripts with one planted source of nondeterminism each, and on scripts without one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .mindspore_plants import CLEAN, PLANTS

QUICK = ("flipped_weight",)


def _again(directory: Path, script: str, *words: str) -> tuple[int, dict[str, Any], str]:
    (directory / "train.py").write_text(script)
    command = [sys.executable, "-m", "msprobe", "again", "--json", *(words or ("train.py",))]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def _marks(names: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _marks(PLANTS))
def test_a_planted_source_is_named(tmp_path: Path, name: str) -> None:
    code, answer, errors = _again(tmp_path, PLANTS[name].script)
    assert code == 1, errors
    assert answer["cause"] == PLANTS[name].cause, answer
    assert "train.py:" in answer["source"]
    if name == "flipped_weight":
        assert "up.Dense.weight differs in one bit: bit 20 of element [0, 5]" in answer["sentence"]
        assert answer["step"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_a_script_that_repeats_itself_is_not_reported(tmp_path: Path, name: str) -> None:
    code, answer, errors = _again(tmp_path, CLEAN[name].script)
    assert (code, answer.get("repeats")) == (0, True), (answer, errors)
    assert answer["records"] > 100


@pytest.mark.slow
def test_fix_says_whether_the_remedy_helps(tmp_path: Path) -> None:
    _, answer, _ = _again(tmp_path, PLANTS["no_seed"].script, "--fix", "train.py")
    assert answer["helped"] is True
    assert "mindspore.set_seed" in answer["remedy"]
    (tmp_path / "mark").unlink()
    _, answer, _ = _again(tmp_path, PLANTS["own_cell"].script, "--fix", "train.py")
    assert answer["helped"] is False
    assert "mindspore.set_deterministic" in answer["remedy"]


def test_graph_mode_is_refused_with_a_sentence(tmp_path: Path) -> None:
    script = CLEAN["plain"].script.replace("PYNATIVE_MODE", "GRAPH_MODE")
    code, _, errors = _again(tmp_path, script)
    assert code == 2
    assert "MindSpore is in graph mode" in errors.splitlines()[-1]


_TRAIN_CELL = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
train.set_train()
for step in range(5):
    train(Tensor(np.ones((8, 16), "f4") * step), Tensor(np.ones((8, 4), "f4")))
    print("ran", step)
"""


@pytest.mark.slow
def test_an_optimizer_inside_the_model_ends_the_step_too(tmp_path: Path) -> None:
    code, _, errors = _again(tmp_path, _TRAIN_CELL, "--step", "0-2", "-o", "kept", "train.py")
    assert code == 0, errors
    names = [one.name for one in (tmp_path / "kept/run1/dump").iterdir()]
    assert sorted(name for name in names if name.startswith("step")) == ["step0", "step1", "step2"]


_RANKS = """
import pathlib, sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE)
init()
rank = get_rank()
ms.set_seed(1)
mark = pathlib.Path(f"mark{rank}")
first = not mark.exists()
mark.touch()
model, reduce = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4)), ops.AllReduce()
optimizer = nn.SGD(model.trainable_params(), 0.1)
data = np.random.default_rng(rank).standard_normal((3, 8, 16)).astype("f4")
grad = ms.value_and_grad(lambda x: model(x).square().mean(), None, optimizer.parameters)
for step in range(3):
    loss, gradients = grad(Tensor(data[step]))
    gradients = tuple(reduce(one) for one in gradients)
    if sys.argv[1] == "flip" and first and step == 1 and rank == 1:
        values = gradients[2].asnumpy().copy()
        values.view(np.int32).reshape(-1)[33] ^= 1 << 22
        gradients = (*gradients[:2], Tensor(values), gradients[3])
    optimizer(gradients)
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["clean", "flip"])
def test_ranks_of_msrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    options = ["--worker_num=2", "--local_worker_num", "2", f"--master_port={_free_port()}", "--log_dir=log"]
    code, answer, errors = _again(tmp_path, _RANKS, "msrun", *options, "train.py", what)
    if what == "clean":
        assert (code, answer.get("repeats")) == (0, True), (answer, errors)
        return
    assert (answer.get("cause"), answer.get("rank"), answer.get("step")) == ("bit flip", 1, 1), (answer, errors)
    assert "bit 22 of element [1, 1] on rank 1" in answer["sentence"]
