"""Graph-mode directories: by operator, io and slot, from npy files and from statistic.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import numpy as np
import pytest

from msprobe.compare import compare

OPERATORS = ("Conv2D.Default_net_conv-Conv2d_Conv2D-op{}", "ReLU.Default_net_relu-ReLU_ReLU-op{}")
HEAD = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
HEAD += ",Max Value,Min Value,L2Norm Value\n"


def graph_dump(root: Path, first_id: int = 1, wrong: Optional[str] = None, csv: bool = False) -> Path:
    directory = root / "rank_0" / "Net" / "0" / "0"
    directory.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    rows = HEAD
    for position, pattern in enumerate(OPERATORS):
        operator = pattern.format(first_id + position)
        for io in ("input", "output"):
            array = numbers.standard_normal((2, 3)).astype(np.float32)
            if wrong == f"{position}.{io}":
                array = array + 1
            stamp = 1000 + 10 * position + (io == "output")
            if csv:
                kind, name = operator.split(".")
                figures = f"{array.max()},{array.min()},{np.linalg.norm(array)}"
                rows += f'{kind},{name},0,0,{stamp},{io},0,24,float32,"(2,3)",{figures}\n'
            else:
                np.save(directory / f"{operator}.0.0.{stamp}.{io}.0.DefaultFormat.float32.npy", array)
    if csv:
        (directory / "statistic.csv").write_text(rows)
    return root


@pytest.mark.parametrize("csv", [False, True])
def test_the_first_operator_that_differs_is_named(tmp_path: Path, csv: bool) -> None:
    golden = graph_dump(tmp_path / "golden", csv=csv)
    assert compare(graph_dump(tmp_path / "same", csv=csv), golden).verdict == "same"
    result = compare(graph_dump(tmp_path / "target", wrong="1.output", csv=csv), golden)
    assert result.origin is not None
    assert "ReLU-op2" in result.origin.name
    assert (result.origin.step, result.origin.rank) == (0, 0)


def test_operator_ids_of_another_compilation_do_not_matter(tmp_path: Path) -> None:
    result = compare(graph_dump(tmp_path / "a", first_id=40), graph_dump(tmp_path / "b"))
    assert result.verdict == "same"
    assert result.counts["pass"] == 4


def test_statistics_are_compared_with_tensors(tmp_path: Path) -> None:
    result = compare(graph_dump(tmp_path / "a", csv=True), graph_dump(tmp_path / "b"))
    assert result.verdict == "same"


def test_a_damaged_file_is_not_passed(tmp_path: Path) -> None:
    golden = graph_dump(tmp_path / "golden")
    target = graph_dump(tmp_path / "target")
    next(iter(sorted((target / "rank_0" / "Net" / "0" / "0").iterdir()))).write_bytes(b"nothing")
    result = compare(target, golden)
    assert result.verdict == "not_compared"
    assert result.reasons == {"unreadable": 1}
