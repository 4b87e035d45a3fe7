"""start, stop, step, save and what they refuse; Model callbacks; settings that cannot work."""

from __future__ import annotations

import json
from typing import Any

import mindspore as ms
import msmodels
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import Model, RunContext
from mindspore.train.callback import _InternalCallbackParam
from mscollecting import Dump, assert_same, collecting, configured
from msmodels import Net, batch, made, tensor

from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import ConfigError
from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger
from msprobe.mindspore.common.utils import MsprobeStep as MsprobeStepOfTheGuide


def test_the_class_is_the_debugger_too(tmp_path):
    with pytest.raises(UsageError, match="There is no debugger yet"):
        PrecisionDebugger.start()
    PrecisionDebugger(configured(tmp_path))
    PrecisionDebugger.start()
    ops.relu(tensor(2))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert Dump(tmp_path / "dump").names == ["Functional.relu.0.forward"]


def test_arguments_win_over_the_file(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, "L0", "tensor"), "statistics", str(tmp_path / "b"), "L1", [0])
    settings = debugger._lifecycle.settings
    assert (settings.task, settings.level, settings.step) == ("statistics", "L1", {0})
    assert settings.dump_path == tmp_path / "b"


def test_every_argument_is_optional_and_has_the_name_of_the_guide(tmp_path):
    """Without any, the packaged config.json: statistics, L1, ./dump_path."""
    debugger = PrecisionDebugger()
    debugger.start()
    ops.relu(tensor(2))
    debugger.stop()
    debugger.step()
    assert Dump(tmp_path / "dump_path").names == ["Functional.relu.0.forward"]
    for name, value in (("task", "tensor"), ("level", "mix"), ("step", [3]), ("dump_path", str(tmp_path / "c"))):
        settings = PrecisionDebugger(config_path=configured(tmp_path), **{name: value})._lifecycle.settings
        assert getattr(settings, name) == {"step": {3}, "dump_path": tmp_path / "c"}.get(name, value)
        PrecisionDebugger._current = None


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_levels_with_cells_need_the_model(tmp_path, level):
    debugger = PrecisionDebugger(configured(tmp_path, level))
    with pytest.raises(UsageError, match="needs the model"):
        debugger.start()
    with pytest.raises(UsageError, match=r"takes a mindspore\.nn\.Cell or a list of them, not str"):
        debugger.start("model")
    debugger.start(made(Net))
    debugger.start()


@pytest.mark.parametrize("wrong", [[3, 1], [0], "01", [0.0, 1], [-1, 2], [True, 2]])
def test_token_ranges_that_cannot_be(tmp_path, wrong):
    debugger = PrecisionDebugger(configured(tmp_path))
    with pytest.raises(UsageError, match="token_range takes"):
        debugger.start(made(Net), wrong)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"level": "L3"}, "level"),
        ({"task": "tensors"}, "tensor"),
        ({"rank": [-1]}, "rank"),
        ({"step": "all"}, "step"),
        ({"statistics": {"data_mode": ["all", "forward"]}}, "data_mode"),
        ({"statistics": {"scope": ["a"]}}, "scope"),
        ({"statistics": {"summary_mode": "sha"}}, "summary_mode"),
        ({"statistics": {"lists": []}}, "lists"),
        ({"statistics": {"scope": ["a", "b"], "list": ["c"]}}, "list"),
        ({"dumppath": "x"}, "dumppath"),
    ],
)
def test_bad_settings_are_refused_with_their_key(tmp_path, keys, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump"), **keys}))
    with pytest.raises(ConfigError, match=message):
        PrecisionDebugger(str(path))
    assert not (tmp_path / "dump").exists()


def test_a_task_that_collects_nothing_says_what_there_is(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "run_ut", "level": "L1", "dump_path": str(tmp_path / "dump")}))
    with pytest.raises(UsageError, match="run_ut"):
        PrecisionDebugger(str(path))


def test_keys_of_the_other_framework_are_logged_and_not_refused(tmp_path, logged):
    PrecisionDebugger(configured(tmp_path, seed=1234, is_deterministic=False, enable_dataloader=False))
    assert logged("seed has no effect on MindSpore")


def test_levels_that_graph_mode_has_not_are_refused_clearly(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises((UsageError, ConfigError), match="L0"):
            PrecisionDebugger(configured(tmp_path, "mix"))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_save_keeps_values_and_gradients(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, "debug", "tensor"))
    x = tensor(2, 3)

    def function(x: Any) -> Any:
        y = ops.exp(x)
        debugger.save({"y": y, "list": [y * 2, 3], "text": "t"}, "middle")
        debugger.save(y, "alone", save_backward=False)
        debugger.save(y, "alone")
        return (y * y).sum()

    for _ in range(2):
        debugger.start()
        gradient = ms.grad(function)(x)
        debugger.save(1.5, "number")
        debugger.stop()
        debugger.step()
    for step in (0, 1):
        dump = Dump(tmp_path / "dump", step)
        assert not dump.errors
        debug = dump.debug
        assert_same(debug["middle.0.debug"]["y"], np.exp(x.asnumpy()))
        assert debug["middle.0.debug"]["list"][1] == {"type": "int", "value": 3}
        assert debug["number.0.debug"] == {"type": "float", "value": 1.5}
        assert {"alone.0.debug", "alone.1.debug", "alone_grad.0.debug"} <= set(debug)
        total = 2 * np.exp(x.asnumpy())
        np.testing.assert_allclose(dump.tensor(debug["alone_grad.0.debug"]), total, rtol=1e-5)
        assert_same(debug["middle_grad.0.debug"], total)
    np.testing.assert_allclose(gradient.asnumpy(), total * np.exp(x.asnumpy()), rtol=1e-5)


def test_save_without_start_saves_step_by_step(tmp_path, logged):
    """Seed 000, 6.1.5: save() alone, at level debug."""
    debugger = PrecisionDebugger(configured(tmp_path, "debug"))
    for number in range(2):
        debugger.save(tensor(2) + number, "x")
        debugger.step()
    for step in (0, 1):
        assert_same(Dump(tmp_path / "dump", step).debug["x.0.debug"], tensor(2).asnumpy() + step)
    assert not logged("between start() and stop()")


def test_save_at_another_level_warns_and_continues(tmp_path, logged):
    debugger = PrecisionDebugger(configured(tmp_path, "L1"))
    debugger.start()
    debugger.save(tensor(2), "x")
    debugger.stop()
    debugger.step()
    assert logged('save() works at level "debug" only')
    assert (tmp_path / "dump" / "step0").exists()
    assert not list(tmp_path.rglob("debug.json"))


def test_steps_and_initial_step(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path, step=["5-6"]))
    debugger.set_init_step(4)
    for _ in range(4):
        debugger.start()
        ops.relu(tensor(2))
        debugger.step()
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step5", "step6"]
    for step in (5, 6):  # there was no stop(), and nothing is lost
        assert Dump(tmp_path / "dump", step).names == ["Functional.relu.0.forward"]


@pytest.mark.parametrize(("wanted", "collected"), [(1, True), (9, False)])
def test_the_rank_filter_counts_in_each_node(tmp_path, monkeypatch, logged, wanted, collected):
    """Seed 003: `rank` counts from 0 in each node. This is rank 9 of 16 and the second one of its node."""
    for name, value in (("RANK_ID", "9"), ("MS_WORKER_NUM", "16"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    debugger = PrecisionDebugger(configured(tmp_path, rank=[wanted]))
    debugger.start()
    ops.relu(tensor(2))
    debugger.stop()
    debugger.step()
    debugger._lifecycle.close()
    assert (tmp_path / "dump" / "step0" / "rank9" / "dump.json").exists() is collected
    assert bool(logged("nothing was collected: this process is rank 1")) is not collected


def test_a_filter_that_matches_nothing_is_logged(tmp_path, logged):
    with collecting(tmp_path, section={"list": ["no_such_api"]}):
        ops.relu(tensor(2))
    PrecisionDebugger._current._lifecycle.close()
    assert logged("'no_such_api' in scope/list matched no call")


def test_forward_backward_dump_end_ends_all_but_compiled_regions(tmp_path, logged):
    @ms.jit
    def region(x: Any) -> Any:
        return ops.relu(x) + 1

    x = tensor(2, 3)
    debugger = PrecisionDebugger(configured(tmp_path, "L1"))
    debugger.start()
    ops.exp(x)
    debugger.forward_backward_dump_end()
    ops.sin(x)
    region(x)
    debugger.stop()
    debugger.step()
    region(x)
    assert logged("forward_backward_dump_end() is deprecated")
    assert Dump(tmp_path / "dump").names == ["Functional.exp.0.forward", "Jit.region.0.forward"]


def dataset() -> GeneratorDataset:
    return GeneratorDataset([tuple(each.asnumpy() for each in batch(n)) for n in range(2)], ["x", "y"], shuffle=False)


def test_model_callbacks(tmp_path, logged):
    assert MsprobeStepOfTheGuide is MsprobeStep
    net = made(Net)
    trainer = Model(net, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params()))
    debugger = PrecisionDebugger(configured(tmp_path, "L1", step=[1]))
    trainer.train(1, dataset(), callbacks=[MsprobeStep(debugger), MsprobeInitStep()], dataset_sink_mode=False)
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step1"]
    assert "Functional.cross_entropy.0.backward" in Dump(tmp_path / "dump", 1).names


def test_dataset_sinking_is_logged(logged):
    """MindSpore turns sinking off on a CPU, so the callback is called here with what a device would give it."""
    training = _InternalCallbackParam()
    training["dataset_sink_mode"] = True
    MsprobeStep(None).on_train_begin(RunContext(training))
    assert logged("with dataset sinking, MsprobeStep sees one step per epoch")


def test_a_training_resumed_by_its_epoch_counts_from_there(tmp_path, logged):
    net = made(Net)
    trainer = Model(net, nn.CrossEntropyLoss(), nn.SGD(net.trainable_params()))
    debugger = PrecisionDebugger(configured(tmp_path, "L0", step=[5]))
    debugger.start(net)
    callbacks = [MsprobeStep(debugger), MsprobeInitStep()]
    trainer.train(3, dataset(), callbacks=callbacks, dataset_sink_mode=False, initial_epoch=2)
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step5"]  # 2 steps an epoch: 4 and 5


def test_run_json_describes_the_run(tmp_path):
    net = made(Net)
    ms.set_seed(77)
    with collecting(tmp_path, net, level="L0") as dump:
        net(batch(0)[0])
    facts = dump.json("run.json")
    assert facts["framework"] == "mindspore"
    assert facts["mindspore"] == ms.__version__
    assert facts["mindspore_seed"] == 77
    assert facts["mode"] == "pynative"
    assert facts["device"] == ["CPU"]
    assert facts["world_size"] == 1
    assert facts["first_batch"][0]["shape"] == [4, 1, 6, 6]
    made_by = facts["made"]["Cell.conv.Conv2d"]
    assert f"File {msmodels.__file__}, line " in made_by
    assert "\n self.conv = " in made_by


def test_dump_json_heads_with_the_framework(tmp_path):
    with collecting(tmp_path, task="tensor") as dump:
        ops.relu(tensor(2))
    head = dump.json("dump.json")
    assert list(head)[:5] == ["task", "level", "framework", "dump_data_dir", "data"]
    assert head["framework"] == "mindspore"
    assert head["dump_data_dir"] == str(dump.directory / "dump_tensor_data")
    assert dump.directory == tmp_path / "dump" / "step0" / "rank"
    assert list(dump.json("stack.json")["0"][0]) == ["Functional.relu.0.forward"]
    assert dump.construct == {}
    assert sorted(path.name for path in (dump.directory / "dump_tensor_data").iterdir()) == [
        "Functional.relu.0.forward.input.0.npy",
        "Functional.relu.0.forward.output.0.npy",
    ]


def test_programs_that_embed_a_debugger(tmp_path, logged):
    """As tests/pytorch/test_integrations.py has them: verl's adapters and vLLM-Ascend."""
    debugger = PrecisionDebugger(configured(tmp_path, step=[0]))
    assert debugger.service.should_stop_service is False
    debugger.start(rank_id=3, scheduled_tokens={"0-a": 2})
    ops.exp(Tensor([1.0, 2.0]))
    debugger.stop()
    debugger.step()
    assert debugger.service.should_stop_service is True
    assert Dump(tmp_path / "dump", 0, "rank3").names == ["Functional.exp.0.forward"]
    assert logged("scheduled_tokens has no effect")
