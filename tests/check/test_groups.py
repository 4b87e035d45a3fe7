"""Identical findings of run_ut are one row, the worst first."""

from __future__ import annotations

import pytest

from msprobe.check.core.precheck import Checked, Report
from msprobe.report.check_terminal import print_report

WHERE = "Module.block.Block, [2, 3], train.py:7"


def found(call: str, forward: str, message: str, where: str = WHERE, unit: str = "rank") -> Checked:
    return Checked(unit, call, forward, "SKIP", message, where)


def names(report: Report) -> list[list[str]]:
    return [[one.call for one in group] for group in report.groups]


def test_findings_of_one_api_that_differ_in_numbers_only_are_one_group() -> None:
    report = Report([found(f"Torch.mm.{n}", "error", f"cosine 0.{n}5, 1e-{n} too large") for n in range(3)])
    assert names(report) == [["Torch.mm.0", "Torch.mm.1", "Torch.mm.2"]]


@pytest.mark.parametrize(
    "other",
    [
        found("Functional.mm.1", "error", "cosine 0.5"),
        found("Torch.mm.1", "warning", "cosine 0.5"),
        found("Torch.mm.1", "error", "sign 0.5"),
        found("Torch.mm.1", "error", "cosine 0.5", where="Module.head.Head, [2, 3], train.py:9"),
        found("Torch.mm.1", "error", "cosine 0.5", unit="rank1"),
    ],
)
def test_findings_that_differ_in_more_are_separate(other: Checked) -> None:
    report = Report([found("Torch.mm.0", "error", "cosine 0.4"), other])
    assert names(report) == [["Torch.mm.0"], [other.call]]


def test_errors_come_first_and_what_passed_is_in_no_group(capsys: pytest.CaptureFixture[str]) -> None:
    checked = [found("Torch.add.0", "warning", "close"), found("Torch.relu.0", "pass", "")]
    checked += [found(f"Torch.mm.{n}", "error", f"cosine 0.{n}") for n in range(2)]
    assert names(Report(checked)) == [["Torch.mm.0", "Torch.mm.1"], ["Torch.add.0"]]
    print_report(Report(checked))
    out = capsys.readouterr().out
    assert out.index("Torch.mm.0 and 1 more") < out.index("Torch.add.0")
    assert "Torch.mm.1" not in out
