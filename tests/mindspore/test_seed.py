"""seed_all in processes of its own: it changes the whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from msprobe.mindspore import seed_all

REPEATABLE = """
import os, random
import numpy as np
import mindspore as ms
from mindspore import ops, nn
from mindspore.common.initializer import initializer, Normal
from msprobe.mindspore import seed_all
def draw():
    seed_all(7, mode=True)
    net = nn.Dense(3, 3)
    return (random.random(), np.random.rand(), ops.randn(3).asnumpy().tobytes(), net.weight.asnumpy().tobytes(),
            initializer(Normal(), [3], ms.float32).init_data().asnumpy().tobytes())
assert draw() == draw()
assert os.environ["PYTHONHASHSEED"] == "7"
assert os.environ["HCCL_DETERMINISTIC"] == "true"
assert ms.get_context("deterministic") == "ON"
seed_all()
assert os.environ["PYTHONHASHSEED"] == "1234" and ms.get_seed() == 1234
assert random.random() == random.Random(1234).random()
x = ms.Tensor(np.ones(1000), ms.float32)
assert (nn.Dropout(p=0.5).set_train()(x).asnumpy() == 0).any()
"""

WITHOUT_DROPOUT = """
import inspect, pickle
import numpy as np
import mindspore as ms
from mindspore import mint, nn, ops
functions = (ops.dropout, ops.dropout2d, ops.dropout3d, mint.nn.functional.dropout)
before = [inspect.signature(each) for each in functions]
classes = (ops.Dropout, ops.Dropout2D, ops.Dropout3D, nn.Dropout, nn.Dropout2d, mint.nn.Dropout)
made = [inspect.signature(each) for each in classes]
from msprobe.mindspore import seed_all
seed_all(rm_dropout=True)
seed_all(rm_dropout=True)
functions = (ops.dropout, ops.dropout2d, ops.dropout3d, mint.nn.functional.dropout)
assert [inspect.signature(each) for each in functions] == before
assert [inspect.signature(each) for each in classes] == made
x = ms.Tensor(np.random.rand(2, 3, 4, 5, 6) + 1, ms.float32)
assert [pickle.loads(pickle.dumps(each)) for each in functions] == list(functions)
for wrong in (lambda: nn.Dropout(p=7), lambda: ops.dropout(x, p=7.0), lambda: ops.dropout2d(x[0], p=7.0)):
    try:
        wrong()
    except (ValueError, RuntimeError):
        continue
    raise AssertionError("p=7")
def same(y):
    return np.array_equal(y.asnumpy(), x.asnumpy())
assert same(ops.Dropout(0.5)(x)[0]) and same(ops.Dropout(keep_prob=0.3, Seed0=1)(x)[0])
assert np.array_equal(ops.Dropout2D(keep_prob=0.5)(x[0])[0].asnumpy(), x[0].asnumpy())
assert same(ops.Dropout3D(0.5)(x)[0])
seed_all()
assert not same(ops.dropout(x)) and not same(nn.Dropout(p=0.5).set_train()(x)) and not same(ops.Dropout(0.5)(x)[0])
seed_all(rm_dropout=True)
assert same(nn.Dropout(p=0.7).set_train()(x)) and same(nn.Dropout(0.7).set_train()(x))
assert same(nn.Dropout(keep_prob=0.2).set_train()(x))
assert same(nn.Dropout3d(0.7).set_train()(x))
assert same(ops.dropout(x, 0.7, True)) and same(ops.dropout(x, p=0.7, training=True))
assert same(ops.dropout3d(x, 0.7, True))
assert same(mint.nn.functional.dropout(x, 0.7)) and same(mint.nn.functional.dropout(x, p=0.7, training=True))
assert same(mint.nn.Dropout(p=0.7).set_train()(x))
for mask in (ops.Dropout(0.5)(x)[1],):
    assert mask.shape == x.shape
"""


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def test_everything_random_repeats_and_dropout_stays():
    run(REPEATABLE)


def test_dropout_becomes_a_no_op_and_keeps_its_signatures():
    run(WITHOUT_DROPOUT)


@pytest.mark.parametrize("wrong", [{"seed": "1"}, {"seed": True}, {"mode": 1}, {"rm_dropout": None}])
def test_wrong_arguments(wrong):
    with pytest.raises(TypeError, match="seed_all: "):
        seed_all(**wrong)


def test_seeds_out_of_numpys_range():
    with pytest.raises(ValueError, match="seed takes 0 to"):
        seed_all(2**32)
