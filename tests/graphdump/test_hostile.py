"""Damaged and hostile files in a dump directory: reported or skipped, never a crash."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import real_dumps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.dump.errors import DumpError
from msprobe.graphdump import GraphDump
from msprobe.graphdump.check import check

STATISTICS = (
    b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Count\n"
    b'Add,Default_Add-op0,0,0,100,output,0,16,Float32,"(2,2)",3,-1,4\n'
)
MAPPING = b"1.npy,Add.Default_Add-op7.0.0.5.output.0.ND.Float32.npy\n"

edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True), st.sampled_from(["set", "insert", "cut"]), st.binary(min_size=1, max_size=6)
    ),
    min_size=1,
    max_size=8,
)


def edited(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    result = bytearray(data)
    for where, kind, text in changes:
        at = int(where * len(result))
        if kind == "set":
            result[at : at + len(text)] = text
        elif kind == "insert":
            result[at:at] = text
        else:
            del result[at : at + 4 * len(text)]
    return bytes(result)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One iteration of a real dump, with a statistic.csv, a mapping.csv and operator arguments added."""
    root = tmp_path_factory.mktemp("hostile")
    shutil.copytree(real_dumps.faulty() / "rank_0", root / "rank_0", ignore=shutil.ignore_patterns("1", "2"))
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    place = root / "rank_0" / "Faulty" / "0" / "0"
    (place / "statistic.csv").write_bytes(STATISTICS)
    (place / "mapping.csv").write_bytes(MAPPING)
    (place / "1.npy").write_bytes(next(place.glob("Mul*output*.npy")).read_bytes())
    (place / "Add.Default_Add-op0.json").write_bytes(b'{"transpose_a": "False"}')
    return root


@pytest.mark.parametrize(
    "pattern",
    [
        "*.ir",
        "*.pb",
        "ms_execution_order*",
        "ms_global*",
        "config.json",
        "statistic.csv",
        "mapping.csv",
        "Mul*output*.npy",
    ],
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=edits)
def test_a_damaged_file_never_stops_the_reader(dump, pattern, changes):
    path = next(dump.rglob(pattern))
    hidden = next(dump.rglob("*.ir")) if pattern == "*.pb" else None
    whole = path.read_bytes()
    text = hidden.read_bytes() if hidden else b""
    try:
        path.write_bytes(edited(whole, changes))
        if hidden:
            hidden.unlink()
        opened = GraphDump(dump)
        for operator in opened.execution:
            opened.producers(operator)
            opened.consumers(operator)
            assert operator.node is None or operator.node.signature is not None
        checked = check(opened)
        opened.history(0, 0)
        assert all(note.strip() for note in (*opened.notes, *checked.unreadable))
        assert len(opened.tensors) >= 30
    finally:
        path.write_bytes(whole)
        if hidden:
            hidden.write_bytes(text)


@contextlib.contextmanager
def ended_soon() -> Iterator[None]:
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


opened: list[str] = []
"""The files that this process opens while `watching`."""
watching = False


def _watch(event: str, args: tuple[object, ...]) -> None:
    if watching and event == "open":
        opened.append(str(args[0]))


sys.addaudithook(_watch)


def read_everything(dump: GraphDump) -> None:
    for operator in dump.execution:
        with contextlib.suppress(DumpError):
            dump.arguments(operator)
    for tensor in dump.tensors:
        with contextlib.suppress(DumpError):
            dump.statistics(tensor)
    dump.history(0, 0)
    dump.order(0, 0)
    check(dump)
    assert dump.notes is not None


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize(
    "pattern",
    ["*.ir", "*.pb", "ms_execution_order*", "ms_global*", "config.json", "statistic.csv", "mapping.csv", "Add*op0.json",
     "Mul*output*.npy"],
)  # fmt: skip
def test_a_special_file_in_its_place_is_not_opened(dump, tmp_path, monkeypatch, pattern, kind):
    path = next(dump.rglob(pattern))
    hidden = next(dump.rglob("*.ir")) if pattern == "*.pb" else None
    content, text = path.read_bytes(), hidden.read_bytes() if hidden else b""
    (tmp_path / "private").write_bytes(content)
    path.unlink()
    if hidden:
        hidden.unlink()
    try:
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path / "private")
        monkeypatch.setitem(globals(), "watching", True)
        opened.clear()
        with ended_soon():
            read_everything(GraphDump(dump))
        assert kind == "pipe" or str(path) not in opened
    finally:
        path.unlink()
        path.write_bytes(content)
        if hidden:
            hidden.write_bytes(text)
