"""overflow and run_ut find what is planted in real models; the complete list is in benchmarks/quality/one_dump.py."""

from __future__ import annotations

from pathlib import Path

import pytest

PART = [
    ("overflow", "llama", "a factor that is too large"),
    ("overflow", "opt", "gradient of a root at zero"),
    ("overflow", "deepseek_v3", "clean"),
    ("run_ut", "gpt2", "tanh 1%"),
]


@pytest.mark.parametrize("wanted", PART, ids=lambda wanted: "-".join(wanted).replace(" ", "_"))
def test_the_planted_fault_is_found_and_nothing_else(tmp_path: Path, wanted: tuple[str, str, str]) -> None:
    from one_dump import CASES, judge

    case = next(case for case in CASES if (case.tool, case.model, case.name) == wanted)
    assert judge(case, tmp_path) == ""


def test_there_is_a_handful_of_plants_for_each_tool() -> None:
    from one_dump import CASES

    for tool in ("overflow", "run_ut"):
        assert len([case for case in CASES if case.tool == tool and case.call]) >= 5
        assert len([case for case in CASES if case.tool == tool and not case.call]) >= 4
