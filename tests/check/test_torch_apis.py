"""Every API of the PyTorch support list, called with generated inputs, forward and backward."""

from __future__ import annotations

import sys
from pathlib import Path

import coverage_page
import pytest
import torch
from coverage_page import Survey


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    return coverage_page.survey(tmp_path_factory.mktemp("survey"))


def test_nothing_that_can_be_called_is_found_wrong(done: Survey) -> None:
    wrong = {title: one for title, one in done.verdicts.items() if {one.forward, one.backward} & {"error", "warning"}}
    assert not wrong


def test_every_api_is_judged_or_has_a_reason(done: Survey) -> None:
    left_out, called = coverage_page.reasons(done)
    assert "no sample of its arguments is known" not in left_out
    assert set(called) <= set(coverage_page._IN_SHORT.values())
    passed = sum(one.forward == "pass" for one in done.verdicts.values())
    assert passed + sum(map(len, called.values())) + sum(map(len, left_out.values())) == len(done.known)
    assert passed / len(done.known) > 0.9


def test_backward_is_run_where_there_is_one(done: Survey) -> None:
    """A sample of what everybody differentiates, over the recipes."""
    names = ("Functional.conv2d", "Functional.layer_norm", "Torch.matmul", "Functional.cross_entropy", "Tensor.__mul__")
    more = ("Torch.linalg.solve", "Functional.embedding", "Torch.gather", "VF.lstm", "Tensor.add_", "Torch.fft.fft")
    assert {name: done.verdicts[name].backward for name in (*names, *more)} == dict.fromkeys((*names, *more), "pass")


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page is of torch 2.13")
@pytest.mark.skipif(sys.platform != "linux", reason="the page is of Linux")
def test_the_page_of_what_is_left_out_is_current(done: Survey) -> None:
    logged = "docs/run_ut_apis.md is out of date: run python tests/check/coverage_page.py"
    assert Path(coverage_page.PAGE).read_text() == coverage_page.page(done), logged
