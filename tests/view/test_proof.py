"""A proof of `msprobe prove -o`: what was grafted, what became the same, the share of each cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dumps import ranks_dump

from msprobe.cli import main
from msprobe.dump.errors import DumpError
from msprobe.view.material import open_material

Open = Callable[..., Any]
CAUSE = {"module": None, "source": "/home/you/train.py:7 in forward", "ran": 2, "changed": 64}
PROOF = {
    "schema": "msprobe/prove/1", "verdict": "proved", "exact": True, "rest": "", "step": 1, "target": 1.5,
    "golden": 1.0, "after": [1.1, 1.0], "differing": 20,
    "causes": [
        {**CAUSE, "name": "Functional.linear.2.forward", "sentence": "it gives <b>another</b> output", "share": 0.8,
         "left": 4},
        {**CAUSE, "name": "Functional.linear.4.forward", "sentence": "grafted on request", "share": 0.2, "left": 0},
    ],
}  # fmt: skip


def written(path: Path, **changes: Any) -> Path:
    ranks_dump(path / "run1" / "dump", 1, wrong_rank=0)
    ranks_dump(path / "run2" / "dump", 1)
    (path / "proof.json").write_text(json.dumps({**PROOF, **changes}))
    return path


def test_a_proof_shows_its_causes_what_became_the_same_and_their_shares(open_view: Open, tmp_path: Path) -> None:
    proof = written(tmp_path / "proof")
    assert main(["view", str(proof), "--export", str(tmp_path / "a.html")]) == 0
    for page in (open_view(proof).page, open_view(tmp_path / "a.html").page):
        assert page.inner_text(".sentence").startswith("Proved: with Functional.linear.2.forward and Functional.linear")
        assert page.locator("#answer .box.good").count() == 1
        first, second = (row.inner_text() for row in page.locator("#proof tbody tr").all())
        assert all(text in first for text in ("<b>another</b>", "train.py:7", "2 / 64", "20 → 4", "80 %"))
        assert all(text in second for text in ("4 → 0 ✓", "20 %"))
        assert "1.5 → 1.1 → 1, golden 1 at step 1" in page.inner_text("#answer dl")
        assert "linear.2" in page.inner_text("#row_name")  # the rows are the target against its last run
        assert page.locator("#tab_match").count() == 0
    page = open_view(proof, locale="zh-CN").page
    assert page.inner_text(".sentence").startswith("已证实")


def test_a_number_that_the_script_printed_has_its_name(tmp_path: Path) -> None:
    facts = dict(open_material(written(tmp_path / "proof", number="accuracy <b>", step=None)).answer.facts)
    assert facts["printed"] == "accuracy <b>: 1.5 → 1.1 → 1, golden 1"
    assert "loss" not in facts
    facts = dict(open_material(written(tmp_path / "broken", target="NaN", step=None)).answer.facts)
    assert facts["loss"] == "nan → 1.1 → 1, golden 1"


def test_what_is_not_the_cause_is_not_green(open_view: Open, tmp_path: Path) -> None:
    proof = written(tmp_path / "proof", verdict="not the cause", rest="linear.2 differs", causes=PROOF["causes"][1:])
    page = open_view(proof).page
    assert page.inner_text(".sentence").startswith("Not the cause: with Functional.linear.4.forward replaced")
    assert page.locator("#answer .box.bad").count() == 1
    assert "linear.2 differs" in page.inner_text("#answer dl")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"verdict": "proved"}',
        '{"verdict": 3, "causes": []}',
        '{"verdict": [], "causes": []}',
        "[" * 100_000,
    ],
)
def test_a_damaged_proof_is_one_sentence(tmp_path: Path, text: str) -> None:
    proof = written(tmp_path)
    (proof / "proof.json").write_text(text)
    with pytest.raises(DumpError, match=r"proof.json (cannot be read|is not a proof)"):
        open_material(proof)


def test_a_link_out_of_the_proof_is_not_followed(tmp_path: Path) -> None:
    """A proof from a stranger must not put a different dump of the reader into an export."""
    proof = written(tmp_path / "proof")
    for run in ("run1", "run2"):
        (proof / run).rename(tmp_path / run)
        (proof / run).symlink_to(tmp_path / run)
    with pytest.raises(DumpError, match="no dumps"):
        open_material(proof)


def test_values_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    cause = {
        "name": 3,
        "module": [],
        "share": "1",
        "ran": True,
        "changed": 10**400,
        "left": None,
        "calls": float("inf"),
    }
    found = open_material(written(tmp_path, causes=[cause, 4], after=["x"], step={}, target=float("nan"))).proof
    assert found is not None
    assert found["causes"] == [
        {"name": "", "module": "", "source": "", "sentence": "", "ran": None, "changed": None, "share": None,
         "calls": None, "left": None}
    ]  # fmt: skip
    assert found["after"] == [None]
