"""The calls of public projects that embed the debugger, in the order in which these projects write them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from collecting import Dump, configured
from torch import nn

import msprobe.pytorch
from msprobe.pytorch import PrecisionDebugger, seed_all


def steps(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.glob("step*/*"))


def test_sglang_with_data_parallel_replicas(tmp_path):
    """ModelRunner.init_msprobe and ModelRunner.forward; each replica passes its own rank."""
    seed_all(mode=True)
    torch.use_deterministic_algorithms(False)
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(config_path=configured(tmp_path, level="L0"))
    for _ in range(2):
        debugger.start(model=model, rank_id=5)
        model(torch.ones(2, 3))
        debugger.stop()
        debugger.step()
    assert steps(tmp_path / "dump") == ["step0/rank5", "step1/rank5"]
    with pytest.raises(ValueError, match="rank_id takes a whole number from 0"):
        debugger.start(model=model, rank_id="x")


def test_a_rank_filter_counts_the_rank_that_is_given(tmp_path):
    debugger = PrecisionDebugger(config_path=configured(tmp_path, rank=[5]))
    for rank in (4, 5):
        debugger.start(rank_id=rank)
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert steps(tmp_path / "dump") == ["step1/rank5"]


class Decorated(nn.Module):
    """As vLLM's support_torch_compile makes a class: its `__call__` goes to forward() and not to torch's."""

    def __init__(self, hooks):
        super().__init__()
        self.layer, self.hooks = nn.Linear(3, 3), hooks

    def __call__(self, x):
        return super().__call__(x) if self.hooks else self.forward(x)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(("hooks", "runs", "said"), [(False, True, 1), (False, False, 1), (True, True, 0)])
def test_a_module_with_a_call_of_its_own_is_logged_once_if_it_runs_no_hooks(tmp_path, logged, hooks, runs, said):
    model = nn.Sequential(nn.Linear(3, 3), Decorated(hooks), Decorated(hooks))
    debugger = PrecisionDebugger(configured(tmp_path, level="L0"))
    for _ in range(2):
        debugger.start(model)
        model(torch.ones(2, 3)) if runs else model[0](torch.ones(2, 3))
        debugger.stop()
        debugger.step()
    names = Dump(tmp_path / "dump").names
    assert ("Module.1.layer.Linear.forward.0" in names) is runs
    assert ("Module.1.Decorated.forward.0" in names) is hooks
    part = "The modules inside are recorded" if runs else "with all modules inside"
    assert len(logged(part)) == said
    assert len(logged("Module.1.Decorated and 1 more are not recorded")) == said


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_vllm_ascend_reads_the_level(tmp_path, level):
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(configured(tmp_path, level=level))
    dbg_cfg = getattr(debugger, "config", None)
    dump_level = str(getattr(dbg_cfg, "level", "L1")).upper() if dbg_cfg is not None else "L1"
    assert dump_level == level.upper()
    if dump_level in ("L0", "MIX"):
        debugger.start(model=model)
    else:
        debugger.start()
    model(torch.ones(2, 3))
    debugger.stop()
    debugger.step()
    assert "Functional.linear.0.forward" in Dump(tmp_path / "dump").names


def test_ms_swift_makes_the_debugger_in_every_step(tmp_path, monkeypatch):
    """MegatronTrainer.train_step; Megatron's model is a list."""
    monkeypatch.chdir(tmp_path)
    model = [nn.Linear(3, 3)]
    for _ in range(2):
        debugger = PrecisionDebugger(dump_path="./dump_path", level="mix", model=model)
        debugger.start()
        try:
            model[0](torch.ones(2, 3)).sum().backward()
        finally:
            debugger.stop()
            debugger.step()
    assert steps(tmp_path / "dump_path") == ["step0/rank", "step1/rank"]
    assert "Module.Linear.parameters_grad" in Dump(tmp_path / "dump_path", 1).names


def test_verl_sends_the_phases_of_a_step_to_directories_of_their_own(tmp_path):
    """The workers set debugger.service.config.dump_path before each phase and reset the service after it."""
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    for _ in range(2):
        for phase in ("generate_sequences", "actor_update"):
            debugger.service.config.dump_path = str(tmp_path / phase)
            debugger.start(model=model, token_range=[0, 0] if phase == "generate_sequences" else None)
            model(torch.ones(2, 3))
            debugger.stop()
            debugger.service._reset_status()
        debugger.step()
    for phase in ("generate_sequences", "actor_update"):
        assert steps(tmp_path / phase) == ["step0/rank", "step1/rank"]
        assert "Functional.linear.0.forward" in Dump(tmp_path / phase, 1).names
    assert not list(tmp_path.glob("*.old-*"))
    assert debugger.config.dump_path == str(tmp_path / "actor_update")
    with pytest.raises(ValueError, match="only dump_path can"):
        debugger.config.level = "L0"


def test_torchtitan_passes_the_parts_of_a_pipeline(tmp_path):
    parts = [nn.Linear(3, 3), nn.Linear(3, 1)]
    debugger = PrecisionDebugger(config_path=configured(tmp_path, level="mix"))
    debugger.start(model=parts)
    parts[1](parts[0](torch.ones(2, 3))).sum().backward()
    debugger.stop()
    debugger.step()
    assert {"Module.0.Linear.parameters_grad", "Module.1.Linear.parameters_grad"} <= set(Dump(tmp_path / "dump").names)


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("name", ["SingleSave", "SingleComparator"])
def test_a_name_of_mindstudio_probe_says_what_to_use(framework, name):
    if framework == "mindspore":
        pytest.importorskip("mindspore")
    with pytest.raises(ImportError, match=rf"has no {name}, unlike mindstudio-probe: use .*(save|compare)"):
        exec(f"from msprobe.{framework} import {name}")


@pytest.mark.parametrize("name", ["compare", "SingleSave", "frobnicate"])
def test_hasattr_is_false_for_what_is_not_there(name):
    assert not hasattr(msprobe.pytorch, name)
    assert getattr(msprobe.pytorch, name, None) is None


def test_a_copied_debugger_is_the_same_and_pickling_is_refused(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path))
    trainer = {"debugger": debugger}
    assert copy.copy(debugger) is debugger
    assert copy.deepcopy(trainer)["debugger"] is debugger
    with pytest.raises(TypeError, match=r"belongs to its process. Create one in each process"):
        pickle.dumps(debugger)


def test_a_method_of_mindstudio_probe_says_what_to_use(tmp_path):
    debugger = PrecisionDebugger(configured(tmp_path))
    with pytest.raises(
        AttributeError, match=r"the debugger of msprobe has no module_dump\(\): call start\(model=module\)"
    ):
        debugger.module_dump(nn.Linear(1, 1), "x")
    assert not hasattr(debugger, "frobnicate")


def test_the_config_of_a_debugger_can_be_copied(tmp_path):
    debugger = PrecisionDebugger(config_path=configured(tmp_path, level="L1"))
    assert copy.copy(debugger.config).level == "L1"
    assert not hasattr(debugger.config, "__no_such_name__")


def test_a_call_after_the_end_of_the_run_names_no_other_debugger(tmp_path, logged):
    debugger = PrecisionDebugger(config_path=configured(tmp_path, level="L1"))
    debugger.start()
    torch.relu(torch.ones(2))
    debugger._lifecycle.close()  # as at exit
    debugger.stop()
    debugger.step()
    assert not logged("replaced")


def test_adapters_ask_whether_all_wanted_steps_are_over(tmp_path):
    """The guide of mindstudio-probe for verl reads this."""
    debugger = PrecisionDebugger(configured(tmp_path, step=[1]))
    seen = []
    for _ in range(3):
        debugger.start()
        debugger.stop()
        debugger.step()
        seen.append(debugger.service.should_stop_service)
    assert seen == [False, True, True]


def test_vllm_ascend_passes_the_tokens_of_each_request(tmp_path, logged):
    model = nn.Linear(3, 3)
    debugger = PrecisionDebugger(configured(tmp_path, level="mix"))
    debugger.start(model=model, rank_id=3, scheduled_tokens={"0-a": 2, "1-b": 1})
    model(torch.ones(3, 3))
    debugger.stop()
    debugger.step()
    assert Dump(tmp_path / "dump", 0, "rank3").names == ["Functional.linear.0.forward"]
    assert logged("scheduled_tokens has no effect")
