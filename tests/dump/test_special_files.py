"""A dump with pipes, devices and links in it: one sentence, no waiting, nothing outside it is read or deleted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main
from msprobe.dump import layout
from msprobe.dump.reader import DumpError, RankDump, open_dump
from msprobe.dump.tensor_files import codec

HEAD = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
JSON_FILES = {layout.DUMP: "records", layout.STACK: "stacks", layout.CONSTRUCT: "construct", layout.RUN: "run"}


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """What waits at a pipe is ended."""

    def ended(*_: object) -> None:
        raise AssertionError("it waited")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    made = tmp_path / "dump" / "step0" / "rank"
    (made / layout.TENSORS).mkdir(parents=True)
    (made / layout.DUMP).write_text(json.dumps({**HEAD, "data": {}}))
    for name in (layout.STACK, layout.CONSTRUCT, layout.RUN):
        (made / name).write_text("{}")
    return made


def plant(path: Path, kind: str, outside: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else outside)


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_json_file_is_a_regular_file_of_the_dump(rank: Path, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "private.json"
    outside.write_text(json.dumps({**HEAD, "data": {}}))
    plant(rank / name, kind, outside)
    found = RankDump(rank)
    said = f"{name} cannot be read: it is (not a regular file|a link)"
    if name == layout.DUMP:
        with soon(), pytest.raises(DumpError, match=said):
            getattr(found, JSON_FILES[name])
        return
    with soon():
        assert not getattr(found, JSON_FILES[name])
        assert [bool(re.search(said, trouble)) for trouble in found.troubles] == [True]


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_a_journal_and_an_error_log_are_too(rank: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "private"
    outside.write_bytes(b'["head", {"task": "statistics"}]\n')
    (rank / layout.DUMP).unlink()
    plant(rank / layout.JOURNAL, kind, outside)
    plant(rank / layout.ERRORS, kind, outside)
    with soon(), pytest.raises(DumpError):
        open_dump(rank.parent.parent)
    with soon(), pytest.raises(DumpError):
        _ = RankDump(rank).records
    assert RankDump(rank).loss is None


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_a_tensor_file_is_too(rank: Path, tmp_path: Path, kind: str, suffix: str) -> None:
    outside = tmp_path / "private.npy"
    np.save(outside, np.arange(3))
    file = rank / layout.TENSORS / f"x{suffix}"
    plant(file, kind, outside)
    with soon(), pytest.raises(DumpError, match=r"it is (not a regular file|a link that leads out of the dump)"):
        codec.load(file, mmap=True)


def test_a_tensor_directory_that_is_a_link_is_not_followed(rank: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    np.save(elsewhere / "x.npy", np.arange(3))
    (rank / layout.TENSORS).rmdir()
    (rank / layout.TENSORS).symlink_to(elsewhere)
    with pytest.raises(DumpError, match="leads out of the dump"):
        RankDump(rank).tensor("x.npy")


def test_a_link_inside_the_dump_is_followed(rank: Path) -> None:
    np.save(rank / layout.TENSORS / "x.npy", np.arange(3))
    (rank / layout.TENSORS / "y.npy").symlink_to("x.npy")
    assert RankDump(rank).tensor("y.npy").tolist() == [0, 1, 2]
    assert open_dump(rank.parent.parent).ranks[0].tensor("y.npy", mmap=False).tolist() == [0, 1, 2]


def test_a_dump_behind_a_link_that_the_user_names_is_read(rank: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(rank.parent.parent)
    np.save(rank / layout.TENSORS / "x.npy", np.arange(3))
    assert open_dump(tmp_path / "mine").ranks[0].tensor("x.npy").tolist() == [0, 1, 2]


def test_recover_deletes_nothing_outside_the_dump(
    rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".mine.tmp").write_text("mine")
    (rank / ".left.tmp").write_text("left")
    (rank / layout.TENSORS).rmdir()
    (rank / layout.TENSORS).symlink_to(elsewhere)
    (rank / layout.DUMP).unlink()
    (rank / layout.JOURNAL).write_text(f'["head", {json.dumps({**HEAD, "format": 1})}]\n')
    assert main(["recover", str(rank.parent.parent)]) == 0, capsys.readouterr()
    assert (elsewhere / ".mine.tmp").exists()
    assert not (rank / ".left.tmp").exists()
    assert (rank / layout.DUMP).exists()


def test_recover_writes_nothing_outside_the_dump(
    rank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rank / layout.DUMP).unlink()
    (rank / layout.JOURNAL).write_text(f'["head", {json.dumps({**HEAD, "format": 1})}]\n')
    sent = tmp_path / "sent" / "step0"
    sent.mkdir(parents=True)
    (sent / "rank").symlink_to(rank)
    assert main(["recover", str(sent.parent)]) != 0
    assert "points outside of" in "".join(capsys.readouterr())
    assert not (rank / layout.DUMP).exists()
