"""The examples of the guides, which the other tests run, are those of seeds 000 and 001, statement by statement."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from test_graph_guide import DYNAMIC_LOOP, DYNAMIC_TRAINER, KERNELS, LOOP, TRAINER
from test_guide import EXAMPLES

SEEDS = json.loads((Path(__file__).parent / "data" / "seed_examples.json").read_text(encoding="utf-8"))
OURS = {
    "000, 7.1.1.1": LOOP,
    "000, 7.1.1.2": TRAINER,
    "000, 7.1.2": KERNELS,
    "000, 7.2.1.1": EXAMPLES[0],
    "000, 7.2.1.2": EXAMPLES[1],
    "000, 7.2.2.1": DYNAMIC_LOOP,
    "000, 7.2.2.2": DYNAMIC_TRAINER,
    "000, 7.2.3": EXAMPLES[3],
    "001, 2.1": KERNELS.partition("debugger.stop()")[0],
    "001, 2.2.1": EXAMPLES[0],
    "001, 2.2.2": DYNAMIC_LOOP,
    "001, 2.2.3": EXAMPLES[1],
    "001, 2.2.4": DYNAMIC_TRAINER,
}


def statements(code: str) -> list[str]:
    return [ast.unparse(each) for each in ast.parse(code).body]


@pytest.mark.parametrize("place", OURS)
def test_the_example_of_the_guide_is_that_of_the_seed(place):
    assert statements(OURS[place]) == statements(SEEDS[place])


def test_the_example_of_a_part_of_the_step_differs_in_its_backward_alone():
    """`loss.backward()`: MindSpore's Tensor has no such method, so the guide has ms.grad around start() to stop()."""
    *before, loop = statements(SEEDS["000, 7.2.1.3"])
    *ours, _, _ = statements(EXAMPLES[2])
    assert ours == before
    assert SEEDS.keys() == {*OURS, "000, 7.2.1.3"}
    assert "loss.backward()" in loop
