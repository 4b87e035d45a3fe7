"""Dumps of the field's own tool, 8.3 against 26: the same script, so all but its known defects agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe.compare import compare

DATA = Path(__file__).parent.parent / "dump" / "data"


@pytest.mark.parametrize("kind", ["statistics_L0", "statistics_mix"])
def test_the_in_place_relu_of_8_3_changes_no_result(kind: str) -> None:
    result = compare(DATA / f"p83_{kind}_statistics", DATA / f"p26_{kind}_statistics")
    (row,) = [row for _, row in result.rows() if row.judgement.verdict in ("warning", "error")]
    assert row.name == "Module.act.ReLU.forward.0.input.0"
    assert row.excuse is not None
    assert result.origin is None


def test_checksums_of_both_generations_agree() -> None:
    result = compare(DATA / "p83_statistics_L1_md5", DATA / "p26_statistics_L1_md5")
    assert result.counts["pass"] >= 70
    assert not result.counts["error"]
    assert not result.counts["warning"]


def test_debug_entries_of_both_generations_agree() -> None:
    result = compare(DATA / "p83_statistics_debug_statistics", DATA / "p26_statistics_debug_statistics")
    assert result.verdict == "same"


def test_statistics_are_compared_with_tensors() -> None:
    result = compare(DATA / "p83_tensor_mix_statistics", DATA / "p83_statistics_mix_statistics")
    assert result.verdict == "same"


def test_tensor_files_that_were_left_out_of_the_sample_are_missing_not_passed() -> None:
    result = compare(DATA / "p83_tensor_mix_statistics", DATA / "p26_tensor_mix_statistics")
    assert result.verdict == "not_compared"
    assert result.reasons["missing"] > 50
