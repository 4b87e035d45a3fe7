"""Planted faults: the named origin is the planted call or its module; clean pairs have no finding at all.

A fault is planted in one module's code. Where that is the model itself, which is never dumped, the call or module
that the model handed the wrong thing to is as near as a dump can come.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Optional

import planted
import pytest

from msprobe.compare import Comparison, compare
from msprobe.compare.calls import module_path

ROOT = ""
L0, L1 = {"level": "L0"}, {"level": "L1"}
TENSOR, MD5 = {"task": "tensor"}, {"summary": "md5"}
EVAL = {"evaluate": True}

# model, fault, the modules that may be named, a part of the call's name, options of the run
FAULTS: list[tuple[str, str, tuple[str, ...], str, dict[str, Any]]] = [
    ("transformer", "wrong eps", ("blocks.1.ln1",), "layer_norm", {}),
    ("transformer", "wrong eps", ("blocks.1.ln1",), "LayerNorm", L0),
    ("transformer", "wrong eps", ("",), "layer_norm.2", L1),
    ("transformer", "missing scale", ("blocks.1.attn",), "mul", {}),
    ("transformer", "missing scale", (ROOT,), "mul", L1),
    ("transformer", "missing scale", ("blocks.1.attn",), "", L0),
    ("transformer", "transposed weight", ("blocks.1.attn.proj",), "weight", {}),
    ("transformer", "transposed weight", ("blocks.1.attn.proj",), "weight", TENSOR),
    ("transformer", "transposed weight", ("blocks.1.attn.proj",), "weight", MD5),
    ("transformer", "changed activation", ("blocks.1",), "relu", {}),
    ("transformer", "changed activation", ("blocks.1",), "", L0),
    ("transformer", "approximate activation", ("blocks.1",), "gelu", {}),
    ("transformer", "approximate activation", ("blocks.1",), "", L0),
    ("transformer", "wrong mask", ("blocks.1.attn",), "", {}),
    ("transformer", "missing mask", ("blocks.1.attn",), "masked_fill", {}),
    ("transformer", "bf16 rounding", ("blocks.1",), "", {}),
    ("transformer", "bf16 rounding", ("blocks.1",), "", {**L0, **TENSOR}),
    ("transformer", "half precision scores", ("blocks.1.attn",), "", {}),
    ("transformer", "dropout left on", ("blocks.0.drop",), "dropout", {}),
    ("transformer", "off-by-one position", (ROOT, "pos"), "", {}),
    ("transformer", "swapped q and k", ("blocks.1.attn",), "matmul", {}),
    ("transformer", "swapped q and k", ("blocks.1.attn",), "matmul", TENSOR),
    ("transformer", "wrong head split", ("blocks.1.attn",), "", {}),
    ("transformer", "nan source", ("blocks.1",), "", {}),
    ("transformer", "nan source", ("blocks.1",), "", TENSOR),
    ("transformer", "missing residual", ("blocks.1",), "", {}),
    ("transformer", "post norm", ("blocks.1",), "", {}),
    ("transformer", "wrong softmax dim", ("blocks.1.attn",), "softmax", {}),
    ("transformer", "wrong reduction", (ROOT,), "cross_entropy", {}),
    ("transformer", "lost gradient", ("blocks.1.attn",), "", {}),
    ("transformer", "halved gradient", ("blocks.1.attn", "blocks.1"), "backward", {}),
    ("transformer", "wrong backward", ("blocks.1.attn",), "backward", {}),
    ("transformer", "wrong backward", ("blocks.1.attn",), "backward", L0),
    ("transformer", "double-counted gradient", ("blocks.1.fc1",), "parameters_grad", {}),
    ("transformer", "double-counted gradient", ("blocks.1.fc1",), "parameters_grad", L0),
    ("transformer", "changed weight", ("blocks.1.fc2",), "weight", {}),
    ("transformer", "one changed element", ("blocks.2.fc1",), "weight", {}),
    ("transformer", "one wrong token", ("tok",), "embedding", {}),
    ("transformer", "wrong labels", (ROOT,), "cross_entropy", {}),
    ("transformer", "temperature", (ROOT,), "truediv", {}),
    ("convnet", "wrong eps", ("bn2",), "batch_norm", {}),
    ("convnet", "stale buffer", ("bn2",), "batch_norm", EVAL),
    ("convnet", "stale buffer", ("bn2",), "", {**EVAL, **L0}),
    ("convnet", "wrong dilation", ("conv2",), "conv2d", {}),
    ("convnet", "leaky activation", (ROOT,), "leaky_relu", {}),
    ("convnet", "wrong pool", ("pool",), "pool", {}),
    ("convnet", "flipped kernel", ("conv2",), "", {}),
    ("convnet", "flipped kernel", ("conv2",), "weight", TENSOR),
    ("convnet", "lost bias", ("conv2",), "bias", {}),
    ("convnet", "missing normalisation", (ROOT,), "", {}),
    ("convnet", "dropout left on", ("drop",), "dropout", {}),
    ("convnet", "double-counted kernel gradient", ("conv1",), "parameters_grad", {}),
    ("convnet", "wrong flatten", (ROOT, "drop"), "", {}),
    ("convnet", "wrong flatten", (ROOT, "drop"), "", MD5),
    ("convnet", "wrong flatten", (ROOT, "drop"), "", TENSOR),
    ("recurrent", "swapped gates", ("cell",), "", {}),
    ("recurrent", "forget bias", ("cell",), "add", {}),
    ("recurrent", "changed activation", ("cell",), "sigmoid", {}),
    ("recurrent", "changed activation", ("cell",), "", L0),
    ("recurrent", "stale state", (ROOT,), "add", {}),
    ("recurrent", "wrong time order", (ROOT, "cell"), "", {}),
    ("recurrent", "cut through time", (ROOT, "cell"), "", {}),
    ("mixture", "one expert", ("moe",), "topk", {}),
    ("mixture", "not normalised", ("moe",), "div", {}),
    ("mixture", "expert off by one", ("moe",), "", {}),
    ("mixture", "changed router", ("moe.router",), "weight", {}),
    ("mixture", "sigmoid after topk", ("moe",), "", {}),
    ("mixture", "router noise", ("moe",), "", {}),
]

NOISE = {"mkldnn": False, "threads": 2}
CLEAN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", {}, {}),
    ("transformer", L0, {}),
    ("transformer", {**L1, **TENSOR}, {}),
    ("convnet", MD5, {}),
    ("recurrent", {"steps": 3}, {}),
    ("mixture", {}, {}),
    ("transformer", {"width": 256, "steps": 2}, {"threads": 2}),
    ("transformer", {"width": 256, "steps": 2, **TENSOR}, {"threads": 2}),
    ("transformer", {"width": 128}, NOISE),
    ("transformer", {"width": 128, **L0, **TENSOR}, NOISE),
    ("convnet", {"steps": 3}, NOISE),
    ("convnet", {"steps": 3, **TENSOR}, NOISE),
    ("recurrent", {"width": 96, "steps": 4}, NOISE),
    # Adam makes whole steps of gradients that are zero but for rounding: a bias before a normalisation, a key's bias.
    ("transformer", {"width": 128, "steps": 3, "adam": True}, NOISE),
    ("transformer", {"width": 128, "steps": 3, "adam": True, **TENSOR}, NOISE),
    ("convnet", {"steps": 3, "adam": True, **TENSOR}, NOISE),
]


class Runs:
    """Golden dumps are made once for each set of options."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._golden: dict[str, Path] = {}
        self._count = 0

    def new(self, kind: str, fault: Optional[str] = None, **options: Any) -> Path:
        self._count += 1
        return planted.run(kind, self._root / f"run{self._count}", fault, **options)

    def golden(self, kind: str, **options: Any) -> Path:
        key = f"{kind}{sorted(options.items())}"
        if key not in self._golden:
            self._golden[key] = self.new(kind, **options)
        return self._golden[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    return Runs(tmp_path_factory.mktemp("planted"))


def _named(result: Comparison, modules: tuple[str, ...], part: str) -> bool:
    origin = result.origin
    if origin is None:
        return False
    path = module_path(origin.module) if origin.module else ROOT
    return path in modules and part in origin.name


def _identity(case: tuple[Any, ...]) -> str:
    return "-".join([case[0], case[1], *(str(value) for value in case[-1].values())]).replace(" ", "_")


@pytest.mark.parametrize("case", FAULTS, ids=_identity)
def test_the_origin_is_the_planted_call_or_its_module(runs: Runs, case: tuple[Any, ...]) -> None:
    kind, fault, modules, part, options = case
    result = compare(runs.new(kind, fault, **options), runs.golden(kind, **options))
    assert result.verdict == "differs"
    assert result.exit_code == 1
    assert _named(result, modules, part), result.origin


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}".replace(" ", ""))
def test_a_clean_pair_has_no_finding(runs: Runs, case: tuple[Any, ...]) -> None:
    kind, options, other = case
    result = compare(runs.new(kind, **options, **other), runs.golden(kind, **options))
    rows = [row for _, row in result.rows() if row.verdict != "pass" and not row.reason.startswith("rounding")]
    found = [(row.name, row.verdict, row.reason, row.distance) for row in rows]
    assert not found
    assert result.verdict == "same"
    assert result.origin is None


def test_a_router_that_computes_the_same_in_another_way_is_the_same(runs: Runs) -> None:
    """The softmax of the chosen logits is the softmax of all, divided by the sum of the chosen."""
    result = compare(runs.new("mixture", "softmax after topk"), runs.golden("mixture"))
    assert result.verdict == "same"
    assert result.origin is None


@pytest.mark.parametrize("adam", [True, False])
def test_a_wrong_learning_rate_is_blamed_on_the_optimizer(runs: Runs, adam: bool) -> None:
    options = {"steps": 2, "adam": adam}
    origin = compare(
        runs.new("transformer", "wrong learning rate", **options), runs.golden("transformer", **options)
    ).origin
    assert origin is not None
    assert (origin.kind, origin.step) == ("weight", 1)
    assert "look at the optimizer" in origin.sentence


def test_the_suite_is_as_large_as_promised() -> None:
    assert len({(case[0], case[1]) for case in FAULTS}) >= 40
    assert len(CLEAN) >= 10


def test_the_source_line_is_the_users(runs: Runs) -> None:
    result = compare(runs.new("transformer", "changed activation"), runs.golden("transformer"))
    assert result.origin is not None
    assert result.origin.source is not None
    assert "planted.py" in result.origin.source
    assert "in forward" in result.origin.source
