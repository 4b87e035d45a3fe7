"""Damaged members and tensor files of a dump: `compare` judges the rest, and never shows a traceback."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
from written import call, saved, write_dump

from msprobe.cli import main

RELU = "Functional.relu.0.forward"
Harm = Callable[[Path], object]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two dumps of one call with a saved tensor that differs, and a stack."""
    for side, value in (("target", 1.0), ("golden", 2.0)):
        rank = tmp_path / side / "step0" / "rank"
        item = saved(rank, "x", np.full((2, 3), value, np.float32))
        stacks = {"0": [[RELU], ["File /home/me/train.py, line 7, in forward, \n y = f(x)"]]}
        write_dump(tmp_path / side, {RELU: call(item, output=item)}, stacks=stacks, task="tensor")
    return tmp_path / "target", tmp_path / "golden"


def rank_of(dump: Path) -> Path:
    return dump / "step0" / "rank"


def stacks(value: Any) -> Harm:
    return lambda dump: (rank_of(dump) / "stack.json").write_text(json.dumps(value))


def items(**members: Any) -> Harm:
    def harm(dump: Path) -> None:
        file = rank_of(dump) / "dump.json"
        content = json.loads(file.read_text())
        content["data"][RELU]["output"][0].update(members)
        file.write_text(json.dumps(content))

    return harm


def head(**names: Any) -> Harm:
    def harm(dump: Path) -> None:
        file = rank_of(dump) / "dump.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **names}))

    return harm


def npy(header: bytes, data: bytes = b"") -> Harm:
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
    return lambda dump: (rank_of(dump) / "dump_tensor_data" / "x.npy").write_bytes(content)


def pt(dump: Path) -> None:
    """A .pt file with a name that is not UTF-8, in the place of the .npy file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
        archive.writestr("archive/\u00e9\u00e9", b"")  # marked as UTF-8
    content = made.getvalue().replace("\u00e9".encode(), b"\xff\xff")
    (rank_of(dump) / "dump_tensor_data" / "x.pt").write_bytes(content)
    items(data_name="x.pt")(dump)


BAD_TENSORS: dict[str, Harm] = {
    "npy: a shape that numpy cannot hold": npy(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4611686018427387904)}"
    ),
    "npy: more dimensions than numpy has": npy(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 64 + b")}", bytes(4)
    ),
    "npy: text": npy(b"{'descr': '<U1', 'fortran_order': False, 'shape': (2, 3)}", bytes(24)),
    "npy: dates": npy(b"{'descr': '<M8[s]', 'fortran_order': False, 'shape': (2, 3)}", bytes(48)),
    "pt: a name that is not UTF-8": pt,
    "a file name that is too long": items(data_name="x" * 5000 + ".npy"),
    "a file name that is no text": items(data_name=["x.npy"]),
}
BAD_MEMBERS: dict[str, Harm] = {
    "a type that is no text": items(type=["torch.Tensor"]),
    "a dtype that is no text": items(dtype=["torch.float32"]),
    "a checksum that is no text": items(md5={"a": 1}),
    "an integer that no float can hold": items(Max=10**400),
    "places that are no object": items(places=[1]),
    "stack.json: frames that are no text": stacks({"0": [[RELU], [5, None, {"a": 1}]]}),
    "stack.json: a stack that is no list": stacks({"0": [[RELU], 5]}),
    "stack.json: names that are no text": stacks({"0": [[[RELU], 7], ["File a, line 1, in f"]]}),
    "stack.json: a line number of 5000 digits": stacks({"0": [[RELU], [f"File a.py, line {'9' * 5000}, in f, \n x"]]}),
}

BAD_HEADS: dict[str, Harm] = {
    "a framework that is an object": head(framework={"a": 1}),
    "a framework that is a list": head(framework=["pytorch"]),
    "a task that is not a number": head(task=float("nan")),
    "a level that is infinite": head(level=float("inf")),
    "a directory that is a number": head(dump_data_dir=5),
}


@pytest.mark.parametrize("side", [0, 1], ids=["target", "golden"])
@pytest.mark.parametrize("what", [*BAD_TENSORS, *BAD_MEMBERS, *BAD_HEADS])
def test_a_bad_file_gives_no_traceback(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], what: str, side: int
) -> None:
    {**BAD_TENSORS, **BAD_MEMBERS, **BAD_HEADS}[what](pair[side])
    reports = [word for kind in ("csv", "json", "xlsx") for word in (f"--{kind}", str(pair[0].parent / f"r.{kind}"))]
    code = main(["compare", *map(str, pair), *reports])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert code in (1, 2)


@pytest.mark.parametrize("what", BAD_TENSORS)
def test_a_tensor_that_cannot_be_read_is_not_the_same_as_itself(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    BAD_TENSORS[what](pair[1])
    assert main(["compare", str(pair[1]), str(pair[1])]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("what", BAD_HEADS)
def test_show_prints_a_damaged_head_as_valid_json(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    BAD_HEADS[what](pair[0])
    assert main(["show", str(pair[0]), "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    shown = json.loads(capsys.readouterr().out, parse_constant=refuse)["ranks"][0]
    assert all(shown[key] is None or isinstance(shown[key], str) for key in ("task", "level", "framework"))
