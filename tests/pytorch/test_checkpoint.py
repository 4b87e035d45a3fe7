"""Gradient checkpointing: the recomputed calls are marked, numbered after the originals, and backward has its call."""

from __future__ import annotations

import pytest
import torch
from collecting import assert_same, collecting
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant).sum()


def expected(model, x):
    y = model.inner[0](x)
    out = y.tanh()
    return torch.autograd.grad(out.sum(), [y, model.inner[0].weight])


@pytest.mark.parametrize("way", ["backward", "grad"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_without_reentry_backward_stays_with_the_original_call(tmp_path, level, way):
    model, x = Checkpointed(False), torch.randn(2, 3, requires_grad=True)
    with collecting(tmp_path, model, level=level) as dump:
        if way == "backward":
            model(x).backward()
        else:
            torch.autograd.grad(model(x), list(model.parameters()))
    gradient, weight = expected(model, x)
    if level != "L1":
        assert "is_recompute" not in dump["Module.inner.0.Linear.forward.0"]
        assert dump["Module.inner.0.Linear.forward.1"]["is_recompute"] is True
        assert_same(dump["Module.inner.0.Linear.backward.0"]["input"][0], gradient)
        assert "Module.inner.0.Linear.backward.1" not in dump.names
    if level != "L0":
        assert dump["Functional.linear.1.forward"]["is_recompute"] is True
        assert_same(dump["Functional.linear.0.backward"]["output"][1], weight)
        assert "Functional.linear.1.backward" not in dump.names


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_with_reentry_backward_belongs_to_the_recomputed_call(tmp_path, level):
    model, x = Checkpointed(True), torch.randn(2, 3, requires_grad=True)
    with collecting(tmp_path, model, level=level) as dump:
        model(x).backward()
    gradient, weight = expected(model, x)
    if level != "L1":
        assert dump["Module.inner.0.Linear.forward.1"]["is_recompute"] is True
        assert_same(dump["Module.inner.0.Linear.backward.1"]["input"][0], gradient)
        assert "Module.inner.0.Linear.backward.0" not in dump.names
        assert_same(dump["Module.inner.0.Linear.parameters_grad"]["weight"][0], weight)
    if level != "L0":
        assert dump["Functional.linear.1.forward"]["is_recompute"] is True
        assert_same(dump["Functional.linear.1.backward"]["output"][1], weight)
    if level == "mix":
        assert dump.construct["Functional.linear.1.forward"] == "Module.inner.0.Linear.forward.1"


def test_nested_checkpoints_are_right(tmp_path):
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def inner(x):
        return layers[1](x).tanh()

    def outer(x):
        return checkpoint(inner, layers[0](x), use_reentrant=False)

    model, x = nn.Sequential(layers), torch.randn(2, 3, requires_grad=True)

    def run():
        x.grad = None
        checkpoint(outer, x, use_reentrant=False).sum().backward()
        return x.grad

    with collecting(tmp_path, model, level="mix") as dump:
        found = run()
    assert torch.equal(found, run())
    assert_same(dump["Functional.linear.0.backward"]["output"][0], found)
    assert [n for n in dump.names if n.startswith("Functional.linear") and n.endswith("backward")] == [
        "Functional.linear.1.backward",
        "Functional.linear.0.backward",
    ]
