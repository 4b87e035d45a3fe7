"""seed_all does what its table says, and only when it is called."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from collecting import collecting, configured
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    before = {name: getattr(F, name) for name in ("dropout", "dropout2d", "dropout3d")}
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark, cudnn.enabled
    yield
    for name, function in before.items():
        setattr(F, name, function)
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark, cudnn.enabled = flags


def drawn():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_everything_random_is_seeded():
    seed_all(7)
    first = drawn()
    assert os.environ["PYTHONHASHSEED"] == "7"
    seed_all(7)
    assert drawn() == first
    seed_all(8)
    assert drawn() != first
    seed_all()
    assert os.environ["PYTHONHASHSEED"] == "1234"
    assert not torch.are_deterministic_algorithms_enabled()


def test_mode_makes_torch_deterministic():
    seed_all(1, mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.enabled


def test_dropout_is_left_alone_unless_asked():
    seed_all(1)
    assert (F.dropout(torch.ones(1000), 0.5) == 0).any()


@pytest.mark.parametrize(("kind", "shape"), [("", (4, 8)), ("2d", (2, 8, 4, 4)), ("3d", (2, 8, 2, 2, 2))])
def test_rm_dropout_stops_functions_and_modules_made_before_and_after(kind, shape):
    x = torch.ones(shape)
    before = getattr(nn, f"Dropout{kind}")(0.9)
    seed_all(1, rm_dropout=True)
    after = getattr(nn, f"Dropout{kind}")(0.9)
    function = getattr(F, f"dropout{kind}")
    for result in (before(x), after(x), function(x, 0.9), function(x, p=0.9, training=True)):
        assert torch.equal(result, x)


def test_removed_dropout_is_still_recorded_under_its_name(tmp_path):
    with collecting(tmp_path / "before") as dump:
        F.dropout(torch.ones(3), 0.5)
    seed_all(1, rm_dropout=True)
    with collecting(tmp_path / "after") as dump:
        F.dropout(torch.ones(3), 0.5)
    assert dump.names == ["Functional.dropout.0.forward"]
    assert dump["Functional.dropout.0.forward"]["output"][0]["Max"] == 1


@pytest.mark.parametrize("wrong", [{"seed": "1"}, {"seed": True}, {"mode": 1}, {"rm_dropout": None}])
def test_wrong_types_are_refused(wrong):
    with pytest.raises(TypeError, match="seed_all"):
        seed_all(**wrong)


def test_the_keys_of_the_configuration_seed_without_touching_dropout(tmp_path):
    torch.manual_seed(0)
    PrecisionDebugger(configured(tmp_path, seed=99))
    first = drawn()
    seed_all(99)
    assert drawn() == first
    assert (F.dropout(torch.ones(1000), 0.5) == 0).any()


def test_making_a_debugger_without_those_keys_draws_nothing(tmp_path):
    state = torch.get_rng_state(), random.getstate()
    with collecting(tmp_path):
        torch.relu(torch.ones(1))
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
