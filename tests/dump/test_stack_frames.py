"""Which frame of a stack is the user's own line."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

import msprobe
from msprobe.dump.stack_frames import is_library, parse_frame, source_line, user_frame

OWN = Path(msprobe.__file__).parent.as_posix()


def frame(file: str, line: int = 7, text: str = "y = f(x)") -> str:
    return f"File {file}, line {line}, in forward, \n {text}"


def test_a_frame_is_parsed_in_every_spelling() -> None:
    assert parse_frame(frame("/a b/net.py")) == ("/a b/net.py", 7, "forward", "y = f(x)")
    assert parse_frame("File /a.py, line 3, in f,\n x") == ("/a.py", 3, "f", "x")
    assert parse_frame("File /a.py, line 3, in <lambda>") == ("/a.py", 3, "<lambda>", "")
    assert parse_frame(frame("/a.py", text="print('File b, line 9, in g, ')")) == (
        *("/a.py", 7, "forward"),
        "print('File b, line 9, in g, ')",
    )
    assert parse_frame("no frame") is None
    assert parse_frame(f"File a, line {'9' * 5000}, in f") is None


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/msprobe/examples/demo.py",
        "/home/me/msprobe/train.py",
        "/home/me/src/msprobe/examples/train.py",
        "/home/me/src/msprobe/train.py",
        "/data/msprobe/mymodel/layers.py",
    ],
)
def test_a_script_in_a_directory_called_msprobe_is_the_users(file: str) -> None:
    assert not is_library(file)
    assert user_frame([frame(f"{OWN}/collect/recorder.py"), frame(file)]) == (file, 7, "forward", "y = f(x)")


@pytest.mark.parametrize(
    "file",
    [
        f"{OWN}/pytorch/debugger.py",
        "/opt/msprobe/pytorch/debugger.py",  # a copy on PYTHONPATH
        "/elsewhere/src/msprobe/pytorch/old_file.py",  # another version's source tree
        "/x/mstt/debug/accuracy_tools/msprobe/core/hook.py",  # mindstudio-probe from source
        "/venv/lib/python3.11/site-packages/msprobe/core/hook.py",
        "/usr/lib/python3/dist-packages/yaml/loader.py",
        "/usr/lib/python3.11/threading.py",
        "site-packages/torch/nn/modules/module.py",
        "<frozen runpy>",
    ],
)
def test_files_of_libraries_and_debuggers_are_not_the_users(file: str) -> None:
    assert is_library(file)
    assert user_frame([frame(file)]) is None


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], None),
        ([frame("/usr/lib/python3.11/a.py"), frame("/me/t.py", 9)], "/me/t.py:9 (y = f(x))"),
        ([frame("/usr/lib/python3.11/a.py", 3, "")], "/usr/lib/python3.11/a.py:3"),
        (["damaged"], None),
    ],
)
def test_the_source_line_falls_back_to_the_innermost_frame(frames: list[str], expected: Optional[str]) -> None:
    assert source_line(frames) == expected
