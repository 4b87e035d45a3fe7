"""MsprobeCallback in MindSpore's Model.train: PyNative and graph mode, trained as without it."""

from __future__ import annotations

from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.train import Model

from msprobe.mindspore import Monitor, MsprobeCallback
from msprobe.watch.reading.run import Run


@pytest.fixture(autouse=True)
def mode_is_put_back():
    before = mindspore.get_context("mode")
    yield
    mindspore.set_context(mode=before)


def train(callbacks, mode):
    mindspore.set_context(mode=mode)
    mindspore.set_seed(1)
    np.random.seed(1)
    network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    random = np.random.RandomState(0)
    columns = (random.randn(24, 8).astype("float32"), random.randn(24, 1).astype("float32"))
    data = mindspore.dataset.NumpySlicesDataset(columns, ["x", "y"], shuffle=False).batch(4)
    Model(network, nn.MSELoss(), optimizer).train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    return [parameter.asnumpy().copy() for parameter in network.get_parameters()]


@pytest.mark.parametrize("mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE])
def test_a_training_is_watched_and_stays_the_same(mode, tmp_path):
    bare = train([], mode)
    watched = train([MsprobeCallback({"dump_path": str(tmp_path), "targets": ["weight", "grad", "state"]})], mode)
    assert all(np.array_equal(one, other) for one, other in zip(bare, watched))
    rank = Run(Path(tmp_path)).ranks[0]
    assert rank.curve("scalar", "loss", "value")[0].tolist() == list(range(6))
    assert len(set(rank.curve("weight", "0.weight", "norm")[1])) == 6
    assert rank.curve("state.exp_avg", "0.weight", "norm")[0].tolist() == list(range(6))
    gradients = rank.curve("grad", "0.weight", "norm")[0].tolist()
    assert gradients == (list(range(6)) if mode == mindspore.PYNATIVE_MODE else [])


class Factor(nn.Cell):
    def construct(self, x):
        return ops.cholesky(x)


def test_an_error_that_mindspore_reports_once_reaches_the_script(tmp_path, caplog):
    """The monitor is the first to wait for the operator that fails: the error is the script's all the same."""
    network = nn.SequentialCell(Factor(), nn.ReLU())
    monitor = Monitor(network, None, {"dump_path": str(tmp_path), "targets": ["output"]})
    with pytest.raises(RuntimeError, match="Cholesky expects symmetric positive definite"):
        network(Tensor(-np.eye(3), mindspore.float32)).asnumpy()
    assert "the monitor failed" not in caplog.text
    monitor.step()
    monitor.close()
