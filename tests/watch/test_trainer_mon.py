"""TrainerMon: configurations, csv names and columns of mindstudio-probe, on both frameworks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from msprobe.config.errors import ConfigError
from msprobe.pytorch import TrainerMon
from msprobe.watch.reading.run import Run

CONFIG = {
    "targets": {"0": {"input": "tensor", "output": "tensor"}},
    "xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "param_distribution": True,
    "ops": ["norm", "min", "max", "nans"], "step_interval": 2, "collect_times": 2, "ndigits": 4,
    "step_count_per_record": 4, "cc_distribution": {"enable": False},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 9}}, {"rule_name": "AnomalyNan"}]},
}  # fmt: skip


@pytest.fixture
def configured(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))

    def write(**changes):
        path = tmp_path / "monitor.json"
        path.write_text(json.dumps({**CONFIG, **changes}))
        return str(path)

    return write


def rows(folder, name):
    with (folder / name).open() as stream:
        return list(csv.DictReader(stream))


def torch_run(path, steps=6, poison=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer, start_iteration=0)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(4, 4)
        model(x * float("nan") if step == poison else x).square().mean().backward()
        optimizer.step()
    monitor.close()
    return monitor.monitor.path


def mindspore_run(path, steps=6, poison=None):
    import mindspore
    from mindspore import Tensor
    from mindspore import nn as cells

    from msprobe.mindspore import TrainerMon as MindSporeTrainerMon

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    model = cells.SequentialCell(cells.Dense(4, 8), cells.ReLU(), cells.Dense(8, 1))
    optimizer = cells.Adam(model.trainable_params(), 1e-2)
    gradient = mindspore.value_and_grad(lambda x: model(x).square().mean(), None, optimizer.parameters)
    monitor = MindSporeTrainerMon(path)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    random = np.random.RandomState(0)
    for step in range(steps):
        x = random.randn(4, 4).astype("float32")
        optimizer(gradient(Tensor(x * np.float32("nan") if step == poison else x))[1])
    monitor.close()
    return monitor.monitor.path


@pytest.mark.parametrize("run", [torch_run, mindspore_run])
def test_files_have_the_names_and_columns_of_mindstudio_probe(run, configured):
    folder = run(configured())
    names = {path.name for path in folder.glob("*.csv")}
    assert {"grad_reduced_0-3.csv", "exp_avg_0-3.csv", "exp_avg_sq_0-3.csv", "actv_0-3.csv"} <= names
    assert {"param_origin_0-3.csv", "param_updated_0-3.csv", "actv_grad_0-3.csv"} <= names
    gradients = rows(folder, "grad_reduced_0-3.csv")
    assert list(gradients[0]) == ["vpp_stage", "name", "step", "norm", "min", "max", "nans", "shape", "dtype"]
    assert {(row["name"], row["step"]) for row in gradients} >= {("0.weight", "0"), ("0.weight", "2")}
    assert list(rows(folder, "actv_0-3.csv")[0])[:4] == ["vpp_stage", "name", "step", "micro_step"]
    assert Run(folder).ranks[0].steps() == [0, 2]
    assert "-rank0-" in folder.name


@pytest.mark.parametrize("run", [torch_run, mindspore_run])
def test_the_nan_rule_fires_and_others_are_off(run, configured):
    folder = run(configured(step_interval=1, collect_times=100), poison=3)
    assert {alarm.rule for alarm in Run(folder).alarms()} == {"nan"}


def test_only_named_modules_are_watched(configured):
    folder = torch_run(configured())
    assert {row["name"].split(".")[0] for row in rows(folder, "actv_0-3.csv")} == {"0"}


def test_keys_of_ascend_are_named_once(configured, logged):
    torch_run(configured())
    torch_run(configured())
    assert len(logged("cc_distribution")) == 1


@pytest.mark.parametrize(("key", "value"), [("format", "xml"), ("step_interval", 0), ("targets", []), ("ops", "norm")])
def test_a_wrong_value_is_one_clear_error(configured, key, value):
    with pytest.raises(ConfigError, match=key):
        TrainerMon(configured(**{key: value}))


ALONE = {"wg_distribution": True}


def alone(configured, **option):
    """A run with one option beside what makes csv files."""
    path = configured()
    Path(path).write_text(json.dumps({**ALONE, **option}))
    return torch_run(path)


@pytest.mark.parametrize(
    ("option", "steps"),
    [({}, range(6)), ({"start_step": 3}, [3, 4, 5]), ({"step_interval": 4}, [0, 4]), ({"collect_times": 2}, [0, 1])],
)
def test_each_choice_of_steps_alone(configured, option, steps):
    assert Run(alone(configured, **option)).ranks[0].steps() == list(steps)


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("wg_distribution", {"grad_reduced", "grad_unreduced"}),
        ("mv_distribution", {"exp_avg", "exp_avg_sq"}),
        ("param_distribution", {"param_origin", "param_updated"}),
    ],
)
def test_each_distribution_alone(configured, option, files):
    folder = alone(configured, **{"wg_distribution": False, option: True})
    assert {path.name.rpartition("_")[0] for path in folder.glob("*.csv")} == files


def test_updates_alone_are_in_the_database(configured):
    folder = alone(configured, wg_distribution=False, ur_distribution=True)
    assert len(Run(folder).ranks[0].curve("update", "0.weight", "ratio")[1]) == 6


def test_numbers_are_rounded_and_files_hold_as_many_steps_as_asked(configured):
    folder = alone(configured, ndigits=2, step_count_per_record=3)
    assert {path.name for path in folder.glob("grad_reduced*")} == {"grad_reduced_0-2.csv", "grad_reduced_3-5.csv"}
    norms = [row["norm"] for row in rows(folder, "grad_reduced_0-2.csv")]
    assert any(len(norm.partition(".")[2]) == 2 for norm in norms)
    assert all(len(norm.partition(".")[2]) <= 2 for norm in norms)
    exact = Run(folder).ranks[0].curve("grad", "0.weight", "norm")[1][0]
    assert float(norms[0]) == pytest.approx(exact, abs=0.005)


def test_tensorboard_instead_of_csv(configured):
    folder = alone(configured, format="tensorboard")
    assert not list(folder.glob("*.csv"))
    assert list(folder.rglob("events.out.tfevents*"))


@pytest.mark.parametrize(("squash", "name"), [(True, "layers.0.weight"), (False, "language_model.layers.0.weight")])
def test_names_are_squashed_on_request(configured, squash, name):
    """The run goes on at step 10: collect_times counts the steps of this process."""
    path = configured(squash_name=squash, wg_distribution=True, targets={}, step_interval=1)
    model = nn.ModuleDict({"language_model": nn.ModuleDict({"layers": nn.Sequential(nn.Linear(4, 1))})})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = TrainerMon(path, params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer, start_iteration=10)
    model["language_model"]["layers"](torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    monitor.close()
    (file,) = monitor.monitor.path.glob("grad_reduced*")
    assert file.name == "grad_reduced_8-11.csv"
    assert {(row["name"], row["step"]) for row in rows(file.parent, file.name)} >= {(name, "10")}
