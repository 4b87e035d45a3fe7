"""The readers of runs in other layouts, of layout files, and of what `msprobe view` shows."""

from __future__ import annotations

import sys
from pathlib import Path

from dump_targets import write_dump
from fuzzing import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "compare"))
from layout_dumps import write_run

from msprobe.cli import _run

LAYOUT = 'target: {dp: 1, tp: 2}\ngolden: {}\nrows: {"*.up.*.parameters.weight": {tp: "S(1)"}, "*": {tp: R}}\n'


def compare(path: Path) -> None:
    """In both roles, and with a layout file."""
    _run("compare", [str(path / "split"), str(path / "single"), "--json", str(path / "out")], None)
    _run("compare", [str(path / "single"), str(path / "split")], None)
    _run("compare", [str(path / "split"), str(path / "single"), "--layout", str(path / "layout.yaml")], None)


def view(path: Path) -> None:
    _run("view", [str(path / "left"), "--export", str(path / "one.html")], None)
    _run("view", [str(path / "left"), str(path / "right"), "--export", str(path / "two.html")], None)


def make_targets(root: Path) -> list[Target]:
    layouts, viewed = root / "layouts", root / "viewed"
    split = write_run(layouts / "split", tp=2)
    write_run(layouts / "single")
    (layouts / "layout.yaml").write_text(LAYOUT)
    rank = split / "step0" / "rank1"
    files = [rank / "dump.json", rank / "run.json", rank / "construct.json", layouts / "layout.yaml"]
    left = write_dump(viewed / "left")
    write_dump(viewed / "right")
    return [
        Target("compare, layouts", compare, layouts, *files, next(rank.glob("dump_tensor_data/*.npy")), weight=8),
        Target("view", view, viewed, *left, weight=2),
    ]
