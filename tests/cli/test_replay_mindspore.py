"""`msprobe replay CELL --run SCRIPT`: a Cell of MindSpore is repeated where the script calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
_SCRIPT = """
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class Noisy(nn.Cell):
    def construct(self, x):
        return x * float(1 + np.random.default_rng().random())


ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(8, 16), nn.LayerNorm((16,)), nn.Dropout(p=0.5), Noisy(), nn.Dense(16, 4))
optimizer = nn.SGD(net.trainable_params(), 0.0)
data = Tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
debugger = None
if "dump" in sys.argv:
    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path="dump", task="tensor", level="L0", step=[1])
if "whole" in sys.argv:
    train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    step = lambda: train(data, ops.ones((4, 4)))
else:
    gradients = ms.value_and_grad(lambda x: net(x).square().mean(), None, optimizer.parameters)
    step = lambda: optimizer(gradients(data)[1])
net.set_train()
for number in range(3):
    if debugger is not None:
        debugger.start(net)
    step()
    if debugger is not None:
        debugger.stop()
        debugger.step()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cells")
    (directory / "train.py").write_text(_SCRIPT)
    subprocess.run([sys.executable, "train.py", "dump"], cwd=directory, check=True, env=os.environ)
    return directory


def _replay(place: Path, cell: str, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "msprobe", "replay", f"dump/step1/rank/Cell.{cell}", "--times", "3", "--json"]
    done = subprocess.run(
        [*command, "--run", "train.py", *words], cwd=place, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("cell", "code"),
    [("1.LayerNorm.forward.0", 0), ("1.LayerNorm.backward.0", 0), ("3.Noisy.forward.0", 1), ("3.Noisy.backward.0", 1)],
)
def test_a_cell_is_repeated_where_the_script_calls_it(place: Path, cell: str, code: int) -> None:
    ended, output, errors = _replay(place, cell)
    assert ended == code, errors
    answer = json.loads(output.splitlines()[-1])
    assert answer["name"] == f"Cell.{cell}"
    assert answer["times"] == 3
    assert answer["results"] == (1 if code == 0 else 3)
    assert (answer["parts"], answer["threads"]) == ([], None)  # no float64, and no number of threads that decides


def test_a_cell_that_cannot_be_repeated_gets_one_sentence(place: Path) -> None:
    code, _, errors = _replay(place, "2.Dropout.forward.0")
    assert code == 2
    assert "it draws random numbers whose state cannot be restored" in errors.splitlines()[-1]
    code, _, errors = _replay(place, "1.LayerNorm.forward.0", "whole")
    assert code == 2
    assert "the script calls it as Cell.network._backbone.1.LayerNorm.forward.0" in errors.splitlines()[-1]
    assert "with start() of that outer model" in errors.splitlines()[-1]
