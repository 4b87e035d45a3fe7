"""seed_all does what its table says, and only when it is called."""

from __future__ import annotations

import inspect
import os
import pickle
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from collecting import collecting, configured
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all

FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    before = {name: getattr(F, name) for name in FUNCTIONS}
    torch._dynamo.reset()  # all compiled modules share one code object, and eight versions of it are kept
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


def test_every_row_of_the_table_of_seed_003(monkeypatch):
    """The cuDNN rows apply with any `mode`; on a machine without a device the calls for it do nothing."""
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, True, False
    from_torch = torch.rand(1, generator=torch.Generator().manual_seed(1234)).item()
    seeded = []
    for name in ("manual_seed", "manual_seed_all"):
        original = getattr(torch.cuda, name)
        monkeypatch.setattr(
            torch.cuda, name, lambda seed, name=name, original=original: seeded.append((name, seed)) or original(seed)
        )
    monkeypatch.setattr(torch, "npu", torch.cuda, raising=False)  # torch_npu is not here: the same two calls
    seed_all()
    assert drawn() == (random.Random(1234).random(), np.random.RandomState(1234).rand(), from_torch)
    assert os.environ["PYTHONHASHSEED"] == "1234"
    assert seeded.count(("manual_seed", 1234)) == 2
    assert seeded.count(("manual_seed_all", 1234)) >= 2
    assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, False, True)


def test_dropout_comes_back():
    seed_all(1, rm_dropout=True)
    assert not (F.dropout(torch.ones(1000), 0.5) == 0).any()
    seed_all(1)
    assert (F.dropout(torch.ones(1000), 0.5) == 0).any()
    assert (nn.Dropout(0.5)(torch.ones(1000)) == 0).any()


@pytest.mark.parametrize(
    ("keys", "seed"),
    [({"is_deterministic": True}, "1234"), ({"seed": 5}, "5"), ({"is_deterministic": False}, None), ({}, None)],
)
def test_a_configuration_seeds_only_where_it_asks_for_it(tmp_path, keys, seed):
    PrecisionDebugger(configured(tmp_path, **keys))
    assert os.environ.get("PYTHONHASHSEED") == seed
    assert torch.are_deterministic_algorithms_enabled() is bool(keys.get("is_deterministic"))


def test_dropout_is_left_alone_unless_asked():
    seed_all(1)
    assert (F.dropout(torch.ones(1000), 0.5) == 0).any()


@pytest.mark.parametrize(
    ("module", "name", "shape"),
    [
        (nn.Dropout, "dropout", (4, 8)),
        (nn.Dropout1d, "dropout1d", (2, 8, 4)),
        (nn.Dropout2d, "dropout2d", (2, 8, 4, 4)),
        (nn.Dropout3d, "dropout3d", (2, 8, 2, 2, 2)),
        (nn.AlphaDropout, "alpha_dropout", (4, 8)),
        (nn.FeatureAlphaDropout, "feature_alpha_dropout", (2, 8, 4, 4)),
    ],
)
def test_rm_dropout_stops_functions_and_modules_and_leaves_the_rest_of_them(module, name, shape):
    """Made before or afterwards, compiled, scripted; and the function still refuses, pickles and documents itself."""
    x = torch.randn(shape)
    before, torchs = module(0.9), getattr(F, name)
    seed_all(1, rm_dropout=True)
    seed_all(1, rm_dropout=True)
    function = getattr(F, name)
    scripted = torch.jit.script(nn.Sequential(module(0.9)))
    compiled = torch.compile(module(0.9), backend="eager", fullgraph=True)
    for result in (before(x), module(0.9)(x), function(x, 0.9, True), function(x, p=1, training=True), scripted(x),
                   compiled(x), function(x, training=True, inplace=True)):  # fmt: skip
        assert torch.equal(result, x)
    assert function(x, 0.9, True, True) is x
    for wrong in (7, -0.1):
        with pytest.raises(ValueError, match=f"between 0 and 1, but got {wrong}"):
            function(x, p=wrong)
    assert pickle.loads(pickle.dumps(function)) is function
    assert b"msprobe" not in pickle.dumps(function)
    assert function.__doc__ == torchs.__doc__
    assert list(inspect.signature(function).parameters) == list(inspect.signature(torchs).parameters)
    assert function.__defaults__ == torchs.__defaults__


def test_a_dropout_of_the_script_stays_and_is_logged(logged):
    def own(input, p=0.5, training=True, inplace=False):
        return input * 2

    F.dropout = own
    seed_all(1, rm_dropout=True)
    assert F.dropout is own
    assert logged("torch.nn.functional.dropout is not torch's own")


def test_what_the_guide_says_of_attention_and_recurrent_layers():
    """Their dropout is an argument of one operator: it is theirs to set."""
    seed_all(1, rm_dropout=True)
    model = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True), nn.LSTM(8, 8, 2, dropout=0.5)])
    x = torch.randn(2, 4, 8)
    for module in model.modules():
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0
    assert torch.equal(model[0](x), model[0](x))
    assert torch.equal(model[1](x)[0], model[1](x)[0])


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
