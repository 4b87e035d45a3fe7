"""The convert verb: what it prints, what it writes, what it returns."""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import convert
from msprobe.graphdump.files.schema import message_class

NAME = "Conv2D.Default_Conv2D-op1.2.3.1623124369613540"


def sample() -> bytes:
    message = message_class("dump_data.proto", "DumpData")()
    output = message.output.add(data_type=1, format=0, size=96)
    output.shape.dim.extend([1, 2, 3, 4])
    header = message.SerializeToString()
    return struct.pack("<Q", len(header)) + header + np.arange(24, dtype="<f4").tobytes()


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="msprobe convert")
    convert.add_arguments(parser)
    return convert.run(parser.parse_args([str(argument) for argument in arguments]))


def test_a_clean_run_returns_0_and_says_what_was_written(tmp_path, capsys):
    (tmp_path / NAME).write_bytes(sample())
    assert run("-d", tmp_path / NAME, "-out", tmp_path / "out", "-f", "NHWC") == 0
    captured = capsys.readouterr()
    assert captured.out == "1 file: 1 tensor written, 0 files failed\n"
    assert captured.err == ""
    loaded = np.load(tmp_path / "out" / f"{NAME}.output.0.1x3x4x2.npy")
    np.testing.assert_array_equal(loaded, np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4).transpose(0, 2, 3, 1))


def test_some_failures_return_1_and_are_listed_with_their_reasons(tmp_path, capsys):
    source, out = tmp_path / "dump", tmp_path / "out"
    source.mkdir()
    (source / NAME).write_bytes(sample())
    broken = source / NAME.replace("op1", "op2")
    broken.write_bytes(sample()[:-1])
    assert run("-d", source, "-out", out) == 1
    reason = "output.0: the header declares 96 bytes, only 95 are left; the file is probably cut off"
    assert (out / "convert_failed_file_list.txt").read_text() == f"{broken}\t{reason}\n"
    captured = capsys.readouterr()
    assert captured.out == "2 files: 1 tensor written, 1 file failed\n"
    assert captured.err == (
        f"  {broken.name}: {reason}\n{out / 'convert_failed_file_list.txt'} lists the failed file\n"
    )
    broken.unlink()
    assert run("-d", source, "-out", out) == 0
    assert not (out / "convert_failed_file_list.txt").exists()


def test_other_files_are_counted(tmp_path, capsys):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / NAME).write_bytes(sample())
    (tmp_path / "dump" / "statistic.csv").write_text("")
    (tmp_path / "dump" / f"{NAME}.input.0.ND.BF16").write_bytes(b"12")
    assert run("-d", tmp_path / "dump", "-out", tmp_path / "out") == 0
    assert capsys.readouterr().out == "1 file: 1 tensor written, 0 files failed, 2 other files skipped\n"


def test_json_has_every_file(tmp_path, capsys):
    (tmp_path / NAME).write_bytes(sample())
    assert run("-d", tmp_path / NAME, "-out", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == [
        {
            "file": str(tmp_path / NAME),
            "written": [str(tmp_path / "out" / f"{NAME}.output.0.1x2x3x4.npy")],
            "errors": [],
            "notes": [],
        }
    ]


def test_an_index_that_is_not_there_is_named(tmp_path, capsys):
    (tmp_path / NAME).write_bytes(sample())
    assert run("-d", tmp_path / NAME, "-out", tmp_path / "out", "-i", 5) == 2
    assert f"  {NAME}: no such input or output; the file has output.0\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "{tmp}/none", "-out", "{tmp}/out"], "{tmp}/none does not exist"),
        (
            ["-d", "{tmp}/empty", "-out", "{tmp}/out"],
            "{tmp}/empty has no asynchronous dump file (their names have no suffix)",
        ),
        (
            ["-d", "{tmp}/empty", "-out", "{tmp}/out", "--layout", "sync", "-t", "pt"],
            "--layout sync writes only npy files; leave -t pt out",
        ),
    ],
)
def test_what_cannot_be_done_returns_2_and_says_why(tmp_path, capsys, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("")
    (tmp_path / "file").write_bytes(sample())
    assert run(*(argument.format(tmp=tmp_path) for argument in arguments)) == 2
    assert capsys.readouterr().err == f"msprobe convert: {message.format(tmp=tmp_path)}\n"


@pytest.mark.parametrize("shape", ["a,b", "", "-1,2", "()"])
def test_text_that_is_not_a_shape_is_refused(shape, capsys):
    with pytest.raises(SystemExit) as error:
        run("-d", "x", "-out", "y", f"-s={shape}")
    assert error.value.code == 2
    assert "is not a shape; write 30,1024,17,17" in capsys.readouterr().err


@pytest.mark.parametrize("shape", ["1,2,3,4", "1x2x3x4", "(1, 2, 3, 4)"])
def test_a_shape_is_read_in_any_usual_spelling_and_takes_the_padding_off(tmp_path, shape):
    """NC1HWC0 with 16 channels for 2, in a file that has only the stored shape."""
    message = message_class("dump_data.proto", "DumpData")()
    for _ in range(2):
        message.output.add(data_type=1, format=3, size=768).shape.dim.extend([1, 1, 3, 4, 16])
    stored = np.zeros((1, 1, 3, 4, 16), "<f4")
    stored[..., :2] = np.arange(24).reshape(1, 1, 3, 4, 2)
    header = message.SerializeToString()
    (tmp_path / NAME).write_bytes(struct.pack("<Q", len(header)) + header + stored.tobytes() * 2)
    assert run("-d", tmp_path / NAME, "-out", tmp_path / "out", "-f", "NCHW", "-s", shape, "-o", 1) == 0
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == f"{NAME}.output.1.1x2x3x4.npy"
    np.testing.assert_array_equal(np.load(file), np.arange(24).reshape(1, 3, 4, 2).transpose(0, 3, 1, 2))


def test_nothing_is_world_readable(tmp_path):
    (tmp_path / NAME).write_bytes(sample()[:-1])
    run("-d", tmp_path / NAME, "-out", tmp_path / "out")
    modes = {path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "out", *Path(tmp_path / "out").iterdir()]}
    assert modes == {"out": 0o750, "convert_failed_file_list.txt": 0o640}
