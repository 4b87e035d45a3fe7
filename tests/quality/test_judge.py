"""The judge is strict: the right place, the right words, and no claim that the rows contradict."""

from __future__ import annotations

from typing import Any, Optional

import pytest


def origin(sentence: str, name: str, module: Optional[str], **changes: Any) -> dict[str, Any]:
    usual = {
        "sentence": sentence,
        "name": name,
        "module": module,
        "direction": "forward",
        "step": 0,
        "rank": None,
        "source": "train.py:10 in forward",
        "evidence": [],
    }
    return {**usual, **changes}


def row(name: str, verdict: str = "pass", side: str = "both") -> dict[str, Any]:
    item = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
    return {
        "step": 0,
        "rank": None,
        "target": None if side == "golden" else name,
        "golden": None if side == "target" else name,
        "verdict": verdict,
        "target_item": item,
        "golden_item": item,
    }


def verdict_of(
    expect: Any,
    found: Optional[dict[str, Any]],
    rows: Optional[list[dict[str, Any]]] = None,
    changed: Optional[set[str]] = None,
) -> str:
    from cases import Case, Side
    from judge import Effect, judge
    from training import Recipe

    side = Side(Recipe())
    case = Case("a fault", "llama", "forward", side, side, expect)
    summary = {"verdict": "differs" if found else "same", "origin": found, "not_compared_reasons": {}}
    return judge(case, summary, rows or [], Effect(1.0, changed)).verdict


NORM = "Functional.layer_norm.3.forward"
NORM_MODULE = "Module.blocks.1.norm.LayerNorm"


def test_the_planted_call_with_the_planted_values_is_right() -> None:
    from cases import Expect

    found = origin(f"{NORM} in {NORM_MODULE}: eps is 0.001, not 1e-05", NORM, NORM_MODULE)
    expect = Expect(modules=("blocks.1.norm",), call="layer_norm", says=("0.001", "1e-05"), direction="forward")
    assert verdict_of(expect, found) == "right"


def test_another_module_another_step_another_rank_and_another_direction_are_wrong() -> None:
    from cases import Expect

    expect = Expect(modules=("blocks.1.norm",), direction="forward", rank=1)
    right = origin("it differs", NORM, NORM_MODULE, rank=1)
    assert verdict_of(expect, right) == "right"
    for change in (
        {"module": "Module.blocks.2.norm.LayerNorm"},
        {"step": 1},
        {"rank": 0},
        {"direction": "backward"},
    ):
        assert verdict_of(expect, {**right, **change}) == "wrong"


def test_no_origin_is_a_miss_and_words_that_lack_make_a_poor_sentence() -> None:
    from cases import Expect

    assert verdict_of(Expect(modules=("blocks.1.norm",)), None) == "missed"
    expect = Expect(optimizer=True, says=(r"\blr\b",))
    found = origin("Tensor.mul_.0.forward has another argument", "Tensor.mul_.0.forward", None, source="adam.py:3 in f")
    assert verdict_of(expect, found) == "poor sentence"
    assert verdict_of(expect, {**found, "sentence": "AdamW: lr is 0.0011, not 0.001"}) == "right"


def test_a_forward_fault_that_is_blamed_on_the_optimizer_is_wrong() -> None:
    from cases import Expect

    found = origin("Tensor.sqrt.5.forward returns a different output.0", "Tensor.sqrt.5.forward", None)
    assert verdict_of(Expect(modules=("",)), found) == "right"
    assert verdict_of(Expect(modules=("",)), {**found, "source": "training.py:3 in _train"}) == "wrong"


@pytest.mark.parametrize("verdict", ["error", "not_compared"])
def test_the_same_inputs_are_untrue_where_one_differs_or_was_not_compared(verdict: str) -> None:
    from cases import Expect

    found = origin(f"{NORM} returns a different output.0 for the same inputs", NORM, NORM_MODULE)
    expect = Expect(modules=("blocks.1.norm",))
    assert verdict_of(expect, found, [row(f"{NORM}.input.0")]) == "right"
    assert verdict_of(expect, found, [row(f"{NORM}.input.0", verdict)]) == "poor sentence"


def test_missing_is_untrue_where_the_target_makes_as_many_such_calls() -> None:
    from cases import Expect

    found = origin("Tensor.cos.0.forward is missing in the target", "Tensor.cos.0.forward", NORM_MODULE)
    expect = Expect(modules=("blocks.1.norm",))
    only_golden = [row("Tensor.cos.0.forward.output.0", "not_compared", "golden")]
    assert verdict_of(expect, found, only_golden) == "right"
    moved = [*only_golden, row("Tensor.cos.0.forward.output.0", "not_compared", "target")]
    assert verdict_of(expect, found, moved) == "poor sentence"


def test_a_parameter_is_right_only_when_it_is_named() -> None:
    from cases import Expect

    expect = Expect(parameter="blocks.1.norm.weight")
    name = "Module.blocks.1.norm.LayerNorm.forward.0.parameters.weight"
    named = origin("weight weight of Module.blocks.1.norm.LayerNorm differs", name, NORM_MODULE)
    assert verdict_of(expect, named) == "right"
    unnamed = origin(f"{NORM} received a different input.1", NORM, NORM_MODULE)
    assert verdict_of(expect, unnamed) == "poor sentence"
    assert verdict_of(expect, {**unnamed, "module": "Module.head.Linear"}) == "wrong"


def test_weights_that_differ_are_untrue_where_all_weights_are_the_same() -> None:
    from cases import Expect

    expect = Expect(modules=("blocks.1.norm",))
    name = "Module.blocks.1.norm.LayerNorm.forward.1.parameters.weight"
    found = origin("weight weight of Module.blocks.1.norm.LayerNorm differs before anything ran", name, NORM_MODULE)
    assert verdict_of(expect, found, changed={"blocks.1.norm.weight"}) == "right"
    assert verdict_of(expect, found, changed=set()) == "poor sentence"


def test_a_fault_that_is_one_line_of_the_script_is_right_only_at_that_line() -> None:
    from cases import Expect

    found = origin("Tensor.div_.0.forward is missing", "Tensor.div_.0.forward", None, source="ddp.py:3 in average")
    rows = [row("Tensor.div_.0.forward.output.0", "not_compared", "golden")]
    assert verdict_of(Expect(source="in average", says=("div",)), found, rows) == "right"
    assert verdict_of(Expect(source="in other", says=("div",)), found, rows) == "wrong"
