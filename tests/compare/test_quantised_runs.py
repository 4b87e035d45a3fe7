"""A quantised run against one that is not: each factor is judged by its format. Some faults of
benchmarks/low_precision, and clean runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from msprobe.compare.comparison import compare
from msprobe.compare.judge.scales import best_form, decibel, explain, layout_of
from msprobe.pytorch import PrecisionDebugger
from msprobe.stats.formats import BY_NAME, block_scales, emulate, largest_of_blocks

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.low_precision.faults import FAULTS, MX5, TENSOR, Fault
from benchmarks.low_precision.quantised_model import build, train
from benchmarks.low_precision.run import is_named, try_clean, try_fault

CHOSEN = (
    "scale of one block of a weight",
    "input: wrong orientation in the backward",
    "gradient: e4m3, not e5m2",
    "output not unscaled",
    "wrong layer kept in high precision",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fault", [one for one in FAULTS if one.name in CHOSEN], ids=lambda one: one.name)
def test_a_fault_is_named_at_its_layer_and_role(fault: Fault, tmp_path: Path) -> None:
    sentence = try_fault(fault, tmp_path)
    assert is_named(fault, sentence), sentence


@pytest.mark.parametrize("recipe", [MX5, TENSOR], ids=lambda one: one.kind)
def test_a_clean_run_is_the_same(recipe: Any, tmp_path: Path) -> None:
    found = try_clean(recipe, 0, 3, tmp_path)
    assert found.origin is None
    assert found.verdict == "same"


def _forget(model: Any) -> None:
    model.blocks[1].norm.eps = 0.1


def _other_weight(model: Any) -> None:
    with torch.no_grad():
        model.blocks[2].up.weight.normal_(std=0.1)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [(_forget, "eps is 0.1, not 1e-05"), (_other_weight, "blocks.2.up")],
    ids=["argument", "weight"],
)
def test_what_no_format_explains_is_still_found(change: Any, wanted: str, tmp_path: Path) -> None:
    golden, target = build(0, None), build(0, MX5)
    change(target)
    for path, model in (("golden", golden), ("target", target)):
        debugger = PrecisionDebugger(dump_path=str(tmp_path / path), task="tensor", level="mix", step=[0])
        train(model, 0, 1, debugger)
    found = compare(tmp_path / "target", tmp_path / "golden")
    assert found.origin is not None
    assert wanted in found.origin.sentence


def test_without_tensors_nothing_is_passed(tmp_path: Path) -> None:
    for path, recipe in (("golden", None), ("target", MX5)):
        debugger = PrecisionDebugger(dump_path=str(tmp_path / path), task="statistics", level="mix", step=[0])
        train(build(0, recipe), 0, 1, debugger)
    assert compare(tmp_path / "target", tmp_path / "golden").verdict == "differs"


def item(shape: list[int], data: str, scale: str, scales: list[int], highest: float, packed: int = 1) -> dict[str, Any]:
    stored = [shape[0], shape[1] // packed]
    parts = {"qdata": {"dtype": data, "shape": stored}, "scale": {"dtype": scale, "shape": scales, "Max": highest}}
    return {"dtype": "torch.bfloat16", "shape": shape, "quantised": parts}


def test_the_format_follows_from_the_parts() -> None:
    random = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    for name, recorded in (
        ("mxfp8", item([64, 64], "torch.float8_e4m3fn", "torch.float8_e8m0fnu", [64, 2], 1.0)),
        ("mxfp8-rceil", item([64, 64], "torch.float8_e4m3fn", "torch.float8_e8m0fnu", [64, 2], 1.0)),
        ("mxfp4", item([64, 64], "torch.uint8", "torch.float8_e8m0fnu", [64, 2], 1.0, packed=2)),
        ("fp8-e5m2", item([64, 64], "torch.float8_e5m2", "torch.float32", [], 1.0)),
        ("fp8-e4m3-row", item([64, 64], "torch.uint8", "torch.float32", [64, 1], 1.0)),
        ("nvfp4-1x16", item([64, 64], "torch.float4_e2m1fn_x2", "torch.float8_e4m3fn", [64, 4], 1.0, packed=2)),
    ):
        layout = layout_of(recorded)
        assert layout is not None, name
        form, given = best_form(emulate(random, BY_NAME[name]), random, layout)
        wanted = BY_NAME[name]
        assert (form.element, form.scale, form.mode) == (wanted.element, wanted.scale, wanted.mode), name
        assert given == pytest.approx(decibel(emulate(random, wanted), random)), name


@pytest.mark.parametrize("parts", [None, {}, {"qdata": 3}, {"qdata": {"shape": "x"}, "scale": {"shape": [1]}}, []])
def test_parts_that_are_no_format_have_none(parts: Any) -> None:
    assert layout_of({"shape": [4, 4], "quantised": parts}) is None


def test_what_is_wrong_is_said() -> None:
    random = np.random.default_rng(0).normal(size=(64, 64)) * np.exp(np.random.default_rng(1).normal(size=(64, 64)))
    layout = layout_of(item([64, 64], "torch.float8_e4m3fn", "torch.float8_e8m0fnu", [64, 2], 1.0))
    assert layout is not None
    form = BY_NAME["mxfp8"]
    good = emulate(random, form)

    def said(change: Any) -> str:
        wrong = good.copy()
        change(wrong)
        return explain(wrong, random, layout, form)

    def scale(block: Any, factor: float) -> Any:
        return lambda wrong: wrong.__setitem__(block, wrong[block] * factor)

    one = (slice(3, 4), slice(32, 64))
    assert said(scale(one, 1 / 448)) == "the scale of block (3, 1) is 448 times too small"
    assert said(scale(one, 0.0)) == "block (3, 1) is zero"
    assert said(scale(slice(None), 4.0)) == "all of it is 4 times too large"
    assert said(scale(slice(None), 0.0)) == "all of it is zero"
    assert "not the nearest ones" in said(lambda wrong: wrong.__iadd__(0.03 * np.abs(wrong) * np.sign(random)))
    limit = float(np.abs(good).max()) / 8
    assert "is cut off at" in said(lambda wrong: np.clip(wrong, -limit, limit, out=wrong))

    sizes = block_scales(largest_of_blocks(np.abs(random), 1, 32), form)
    for order in (sizes.T.reshape(sizes.shape), sizes.reshape(sizes.shape[::-1]).T):
        factors = np.repeat(order / sizes, 32, axis=1)
        assert said(lambda wrong: wrong.__imul__(factors)) == "its scales are in the order of the transposed matrix"  # noqa: B023
