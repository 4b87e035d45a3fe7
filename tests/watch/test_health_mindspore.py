"""The targets attention_logits, outliers and quantisation on MindSpore."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
import sick_attention
from mindspore import Tensor, mint, nn, ops
from test_health_targets import curves

from msprobe.mindspore import Monitor
from msprobe.mindspore.watch.attention import _PLACES
from msprobe.stats.damage import measure_damage, worst_of
from msprobe.stats.formats import BY_NAME

SOFTMAX = {
    "function": lambda logits: ops.softmax(logits, -1),
    "mint": lambda logits: mint.nn.functional.softmax(logits, dim=-1),
    "method": lambda logits: logits.softmax(-1),
    "cell": None,
}


class Attention(nn.Cell):
    """Two heads of width 4 over 6 tokens."""

    def __init__(self, how):
        super().__init__()
        self.qkv, self.how, self.normal = nn.Dense(8, 24), how, nn.Softmax(-1)
        self.seen = []

    def construct(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        logits = ops.matmul(q, k.swapaxes(-2, -1)) / 2
        self.seen.append(logits.asnumpy())
        weights = self.normal(logits) if self.how == "cell" else SOFTMAX[self.how](logits)
        return ops.matmul(weights, v).swapaxes(1, 2).reshape(*x.shape)


class Network(nn.Cell):
    def __init__(self, how):
        super().__init__()
        self.attention, self.router, self.head = Attention(how), nn.Dense(8, 3), nn.Dense(8, 4)
        self.heads_of = nn.MultiheadAttention(8, 2, batch_first=True) if how == "layer" else None

    def construct(self, x):
        x = self.heads_of(x, x, x)[0] if self.heads_of is not None else self.attention(x)
        gate = ops.softmax(self.router(x), -1)  # not attention
        return self.head(x * gate.max(-1, keepdims=True))


def watch(path, how, steps=3, **config):
    """The losses, the weights, and the network."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(0)
    np.random.seed(0)
    network = Network(how)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    x = Tensor(np.random.RandomState(1).randn(3, 6, 8).astype("float32"))
    gradient = mindspore.value_and_grad(lambda given: network(given).square().mean(), None, optimizer.parameters)
    originals = [getattr(owner, name) for owner, name in _PLACES]
    monitor = Monitor(network, optimizer, {"dump_path": str(path), **config}) if path else None
    losses = []
    for _ in range(steps):
        loss, gradients = gradient(x)
        optimizer(gradients)
        losses.append(loss.asnumpy().tobytes())
        if monitor is not None:
            monitor.step(loss=loss)
    if monitor is not None:
        monitor.close()
    assert [getattr(owner, name) for owner, name in _PLACES] == originals
    return losses, [one.asnumpy().tobytes() for one in network.trainable_params()], network


@pytest.mark.parametrize("how", SOFTMAX)
def test_the_largest_logit_of_each_head_is_exact_in_every_step(how, tmp_path):
    _, _, network = watch(tmp_path, how, targets=["attention_logits"])
    exact = curves(tmp_path, "attention_logits", "max")
    assert list(exact) == ["attention.head0", "attention.head1"]
    for step, logits in enumerate(network.attention.seen):
        for head in (0, 1):
            assert exact[f"attention.head{head}"][step] == logits[:, head].max()
    assert not any(curves(tmp_path, "attention_logits", "bound").values())


def test_the_layer_of_mindspore_is_seen(tmp_path):
    watch(tmp_path, "layer", targets=["attention_logits"])
    assert list(curves(tmp_path, "attention_logits", "max")) == ["heads_of.head0", "heads_of.head1"]


@pytest.mark.parametrize("target", sick_attention.HEALTH)
def test_training_is_bit_identical_with_each_target_alone(target, tmp_path):
    bare, watched = watch(None, "function"), watch(tmp_path, "function", targets=[target])
    assert watched[:2] == bare[:2]
    kind = "quantisation.mxfp8" if target == "quantisation" else target
    assert curves(tmp_path, kind, {"outliers": "ratio", "quantisation": "snr"}.get(target, "max"))


def test_quantisation_has_the_numbers_of_the_format_for_weight_input_and_gradient(tmp_path):
    options = {"formats": ["mxfp8", "nvfp4"], "every": 2}
    _, _, network = watch(tmp_path, "function", 3, targets=["quantisation"], quantisation=options)
    products = ("attention.qkv", "router", "head")
    for form in options["formats"]:
        found = curves(tmp_path, f"quantisation.{form}", "snr")
        assert sorted(found) == sorted(
            f"{name}.{role}" for name in products for role in ("input", "output_grad", "weight")
        )
        assert all(sorted(steps) == [0, 2] for steps in found.values())
        damage = worst_of(measure_damage(network.head.weight.asnumpy(), BY_NAME[form], weight=True))
        assert found["head.weight"][2] == pytest.approx(damage.snr, rel=1e-5)
    x = np.random.RandomState(1).randn(3, 6, 8).astype("float32")
    norms = curves(tmp_path, "quantisation.mxfp8", "norm")
    assert norms["attention.qkv.input"][0] == pytest.approx(float(np.linalg.norm(x)), rel=1e-5)
    assert norms["head.output_grad"][0] > 0


def test_outliers_are_those_of_the_outputs_of_cells(tmp_path):
    watch(tmp_path, "function", 1, targets=["outliers"])
    largest, median = (curves(tmp_path, "outliers", one) for one in ("max", "median"))
    assert {"attention.qkv", "attention", "router", "head"} <= set(largest)
    assert all(0 < median[name][0] < largest[name][0] for name in ("attention.qkv", "router", "head"))
    assert curves(tmp_path, "outliers", "ratio")["head"][0] == pytest.approx(largest["head"][0] / median["head"][0])


def test_a_network_without_attention_is_named(tmp_path, logged):
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    network = nn.Dense(8, 8)
    monitor = Monitor(network, None, {"dump_path": str(tmp_path), "targets": ["attention_logits"]})
    network(Tensor(np.ones((2, 8), "float32")))
    monitor.step()
    monitor.close()
    assert logged("attention_logits has seen no attention")


def test_an_exception_in_a_cell_leaves_the_functions_as_they_were(tmp_path):
    class Broken(Network):
        def construct(self, x):
            super().construct(x)
            raise ValueError("of the script")

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    originals = [getattr(owner, name) for owner, name in _PLACES]
    network = Broken("function")
    monitor = Monitor(network, None, {"dump_path": str(tmp_path), "targets": ["attention_logits"]})
    with pytest.raises(ValueError, match="of the script"):
        network(Tensor(np.ones((1, 6, 8), "float32")))
    monitor.step()
    monitor.close()
    assert [getattr(owner, name) for owner, name in _PLACES] == originals
