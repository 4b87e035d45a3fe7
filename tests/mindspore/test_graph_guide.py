"""The examples of docs/mindspore_graph.md, run as written except for the device, with a network and data."""

from __future__ import annotations

import re

import pytest
from mscollecting import configured
from test_guide import COMMON, ROOT, run, steps

from msprobe.graphdump import GraphDump

PAGE = (ROOT / "docs" / "mindspore_graph.md").read_text(encoding="utf-8")
LOOP, TRAINER, KERNELS, DYNAMIC_LOOP, DYNAMIC_TRAINER = re.findall(r"```python\n(.*?)```", PAGE, re.S)
OPTIMIZER = "optimizer = nn.SGD(model.trainable_params(), 0.1)\ntrainer ="
FORWARD = ["Cell.fc1.Dense.forward.0", "Cell.relu.ReLU.forward.0", "Cell.fc2.Dense.forward.0"]
BACKWARD = ["Cell.fc2.Dense.backward.0", "Cell.relu.ReLU.backward.0", "Cell.fc1.Dense.backward.0"]


def test_cells_in_a_loop(tmp_path):
    configured(tmp_path, "L0")
    run(tmp_path, COMMON + LOOP)
    for dump in steps(tmp_path, 0, 1):
        assert dump.names == [*FORWARD, *BACKWARD]


def test_cells_with_the_trainer_from_the_step_of_a_resumed_training(tmp_path):
    configured(tmp_path, "L0", "tensor", step=[7, 8])
    resumed = """
from msprobe.mindspore import MsprobeInitStep
class Resumed(mindspore.train.Callback):
    def on_train_begin(self, run_context):
        run_context.original_args().cur_step_num = 7
"""
    callbacks = "callbacks=[Resumed(), MsprobeInitStep(), MsprobeStep(debugger)]"
    example = TRAINER.replace("callbacks=[MsprobeStep(debugger)]", callbacks).replace("trainer =", OPTIMIZER)
    run(tmp_path, COMMON + resumed + example)
    for dump in steps(tmp_path, 7, 8):
        assert dump.names[:6] == [*FORWARD, *BACKWARD]
        assert dump.names[6:] == ["Cell.fc1.Dense.parameters_grad", "Cell.fc2.Dense.parameters_grad"]
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step7", "step8"]


def test_cells_with_the_trainer(tmp_path):
    configured(tmp_path, "L0")
    run(tmp_path, COMMON + TRAINER.replace("trainer =", OPTIMIZER))
    for dump in steps(tmp_path, 0, 1):
        assert dump.names[:6] == [*FORWARD, *BACKWARD]


@pytest.mark.parametrize("ends", [True, False], ids=["start, stop, step", "start alone, as in seed 001"])
def test_kernels(tmp_path, ends):
    """With a relative dump_path: seed 003 allows only absolute ones here."""
    configured(tmp_path, "L2", dump_path="./dump")
    training = "model = Network()\nfor data, label in data_loader:\n    ms.grad(model)(data)\n"
    example = KERNELS if ends else KERNELS.partition("debugger.stop()")[0]
    run(tmp_path, COMMON + example.replace("# the model and the training\n", training))
    dump = GraphDump(tmp_path / "dump")
    assert dump.iterations == (0, 1)
    for step in (0, 1):
        found = {(one.type, one.io): one.row for one in dump.tensors if one.iteration == step}
        assert {"MatMul", "BiasAdd", "Tanh", "TanhGrad"} <= {kind for kind, _ in found}
        row = found["Tanh", "output"]
        assert row is not None
        assert -1 <= float(row["Min Value"]) <= float(row["Max Value"]) <= 1
        assert row["Shape"] == "(2,8)"


def test_kernels_of_a_dynamic_run(tmp_path):
    compiled = COMMON.replace("    def construct", "    @mindspore.jit\n    def construct")
    configured(tmp_path, "L2")
    run(tmp_path, compiled + DYNAMIC_LOOP)
    dump = GraphDump(tmp_path / "dump")
    assert {"MatMul", "Tanh"} <= {one.type for one in dump.tensors}
    assert dump.iterations == (0,)  # without an optimizer nothing ends a step
    configured(tmp_path / "trainer", "L2")
    run(tmp_path / "trainer", compiled + DYNAMIC_TRAINER.replace("trainer =", OPTIMIZER))
    assert GraphDump(tmp_path / "trainer" / "dump").iterations == (0, 1)
    assert not (tmp_path / "trainer" / "dump" / "step0").exists()
