"""Remembered statistics are never stale: what changes memory without moving the version counter is met."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest
import torch
from collecting import assert_same, collecting
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.pytorch.tensors.tensor_text import _HEADS as HEADS
from msprobe.pytorch.tensors.tensor_text import EXCHANGE
from msprobe.stats import CRC, STATS


def by_numpy(x):
    alias = x.numpy()
    return lambda: alias.__setitem__(slice(None), 7)


def by_dlpack(x):
    alias = torch.from_dlpack(x)
    return lambda: alias.fill_(7)


def by_data(x):
    return lambda: x.data.fill_(7)


def by_kept_data(x):
    alias = x.data
    return lambda: alias.fill_(7)


def by_assigned_data(x):
    return lambda: setattr(x, "data", torch.full((3,), 7.0))


def by_pointer(x):
    pointer = x.data_ptr()
    return lambda: ctypes.memmove(pointer, np.full(3, 7, np.float32).ctypes.data, 12)


def by_storage(x):
    storage = x.untyped_storage()
    return lambda: storage.copy_(torch.full((3,), 7.0).untyped_storage())


def by_set(x):
    return lambda: x.set_(torch.full((3,), 7.0))


def by_view(x):
    alias = x.view(3, 1)[:]
    return lambda: alias.fill_(7)


def by_foreach(x):
    return lambda: torch._foreach_add_([x], 7.0)


def by_out(x):
    return lambda: torch.full((3,), 7.0, out=x)


WAYS = [by_numpy, by_dlpack, by_data, by_kept_data, by_assigned_data, by_pointer, by_storage, by_set, by_view,
        by_foreach, by_out]  # fmt: skip


@pytest.mark.parametrize("level", ["L1", "mix", "L0"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_write_behind_the_counter_is_seen(tmp_path, way, level):
    x = torch.zeros(3)
    model = nn.Sequential(nn.Tanh())
    with collecting(tmp_path, model, level=level) as dump:
        write = way(x)
        model(x)
        write()
        model(x)
    name = "Torch.tanh.{}.forward" if level == "L1" else "Module.0.Tanh.forward.{}"
    assert_same(dump[name.format(0)]["input_args"][0], torch.zeros(3))
    assert_same(dump[name.format(1)]["input_args"][0], torch.full((3,), 7.0))


def fill(alias):
    alias.fill_(7)


def assign(alias):
    alias[:] = 7


def add(alias):
    alias += 7


def foreach(alias):
    torch._foreach_add_([alias], 7.0)


def relu(alias):
    nn.functional.threshold(alias, 1.0, 7.0, inplace=True)


def out(alias):
    torch.add(torch.zeros(3), 7, out=alias)


def made_out(alias):
    torch.full((3,), 7.0, out=alias)


def operator(alias):
    torch.ops.aten.fill_.Scalar(alias, 7)


def view(alias):
    alias.view(3, 1).select(1, 0).copy_(torch.full((3,), 7.0))


@pytest.mark.parametrize("level", ["L1", "mix", "L0"])
@pytest.mark.parametrize("write", [fill, assign, add, foreach, relu, out, made_out, operator, view])
def test_a_write_through_an_alias_from_before_start_is_seen(tmp_path, write, level):
    """`x.data` has its own version counter: parameters in one flat buffer are written like this."""
    x = torch.zeros(3)
    alias = x.data
    model = nn.Sequential(nn.Tanh())
    with collecting(tmp_path, model, level=level) as dump:
        model(x)
        write(alias)
        model(x)
    name = "Torch.tanh.1.forward" if level == "L1" else "Module.0.Tanh.forward.1"
    assert_same(dump[name]["input_args"][0], torch.full((3,), 7.0))


@pytest.mark.parametrize("level", ["L1", "mix", "L0"])
def test_memory_shared_with_numpy_before_start_is_not_trusted(tmp_path, level):
    array = np.zeros(3, np.float32)
    x = torch.from_numpy(array)
    model = nn.Sequential(nn.Tanh())
    with collecting(tmp_path, model, level=level) as dump:
        model(x)
        array[:] = 7
        model(x)
    name = "Torch.tanh.1.forward" if level == "L1" else "Module.0.Tanh.forward.1"
    assert_same(dump[name]["input_args"][0], torch.full((3,), 7.0))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("kind", ["fused", "foreach", "for-loop"])
def test_weights_after_an_optimizer_step_are_the_new_ones(tmp_path, level, kind):
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.5, fused=kind == "fused", foreach=kind == "foreach" if kind != "fused" else None
    )
    weights = []
    with collecting(tmp_path, model, level=level) as dump:
        for _ in range(3):
            weights.append(model[0].weight.detach().clone())
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    for number, weight in enumerate(weights):
        if level != "L1":
            assert_same(dump[f"Module.0.Linear.forward.{number}"]["parameters"]["weight"], weight)
        if level != "L0":
            assert_same(dump[f"Functional.linear.{number}.forward"]["input_args"][1], weight)


@pytest.mark.parametrize("kind", ["_kernel", "tensor_cache"])
def test_what_the_cache_keeps_and_how_long(kind):
    module = pytest.importorskip(f"msprobe.stats.{kind}", reason="the C kernel is not built")
    texts = module.TensorCache(EXCHANGE, HEADS, torch.strided, STATS | CRC, remembers=True, checks=False)
    x = torch.arange(6.0).reshape(2, 3)
    first = texts.find(x)
    parsed = json.loads(first.text)
    assert parsed["requires_grad"] is False
    assert_same(parsed, x)
    assert first.text[first.at :].startswith(', "md5": ')
    assert texts.text(x) == first.text == texts.recall(x).text
    first.saved.append("a file")
    assert texts.find(x).saved == ["a file"]
    for change in (
        lambda: x.add_(1),
        lambda: texts.mark_written(x.data),
        texts.clear,
        lambda: x.requires_grad_(),
        lambda: setattr(x, "data", torch.ones(2, 3)),
    ):
        texts.find(x).saved.append("a file")
        assert texts.recall(x) is not None
        change()
        assert texts.recall(x) is None
        assert texts.find(x).saved == []
    assert texts.is_private(x)
    assert texts.expose(x)
    assert not texts.expose(x.detach())  # the same memory
    assert texts.is_private(x) is False
    texts.clear()
    texts.find(x)
    assert texts.recall(x) is None
    conjugate = torch.view_as_complex(torch.ones(3, 2)).conj()
    for odd in (torch.ones(3).to_sparse(), torch.ones(3, device="meta"), conjugate):
        assert texts.find(odd) is texts.text(odd) is None
    with torch.inference_mode():
        assert texts.recall(torch.ones(3)) is None
    given = texts.add(y := torch.ones(2), "{}", 1)
    assert (given.text, given.at, given.saved) == ("{}", 1, [])
    assert texts.recall(y).text == "{}"
    forgetful = module.TensorCache(EXCHANGE, HEADS, torch.strided, STATS, remembers=False, checks=False)
    assert forgetful.find(y).text == forgetful.text(y)
    assert forgetful.recall(y) is None
    careful = module.TensorCache(EXCHANGE, HEADS, torch.strided, STATS, remembers=True, checks=True)
    careful.find(y)
    y.data.fill_(5)
    with pytest.raises(AssertionError, match="cached statistics"):
        careful.find(y)


def test_a_tensor_that_died_lends_its_statistics_to_no_other(tmp_path):
    with collecting(tmp_path) as dump:
        for number in range(200):
            torch.relu(torch.full((2,), float(number)))
    for number in range(200):
        assert dump[f"Torch.relu.{number}.forward"]["input_args"][0]["Max"] == number


def test_what_a_call_wrote_before_it_raised_is_seen(tmp_path):
    """A checkpoint that stops early raises out of the last call of its recomputation."""
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    means = []
    norm.register_forward_pre_hook(lambda module, args: means.append(module.running_mean.clone()))
    model = nn.Sequential(linear, norm)
    with collecting(tmp_path, model) as dump:
        for _ in range(3):
            checkpoint(model, torch.randn(5, 4, requires_grad=True), use_reentrant=False).square().sum().backward()
    assert len(means) == 6
    for number, mean in enumerate(means):
        assert_same(dump[f"Functional.batch_norm.{number}.forward"]["input_args"][1], mean)


def test_observers_of_quantization_aware_training_are_seen(tmp_path):
    observer = torch.ao.quantization.FusedMovingAvgObsFakeQuantize()
    lows = []
    with collecting(tmp_path) as dump:
        for _ in range(3):
            lows.append(observer.activation_post_process.min_val.clone())
            observer(torch.randn(50))
    for number, low in enumerate(lows):
        record = dump[f"Torch.fused_moving_avg_obs_fake_quant.{number}.forward"]
        assert record["input_args"][3]["Min"] == low.item()


@pytest.mark.parametrize("kind", ["_kernel", "tensor_cache"])
def test_memory_that_another_process_may_write_is_not_trusted(kind):
    module = pytest.importorskip(f"msprobe.stats.{kind}", reason="the C kernel is not built")
    texts = module.TensorCache(EXCHANGE, HEADS, torch.strided, STATS, remembers=True, checks=False)
    x = torch.ones(3).share_memory_()
    assert texts.is_private(x) is False
    texts.find(x)
    assert texts.recall(x) is None
