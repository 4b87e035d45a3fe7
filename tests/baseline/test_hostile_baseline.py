"""A baseline comes from a repository that others write to: its files, its names and its commit are data."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable

import pytest

from msprobe.baseline.changed_lines import changed_lines
from msprobe.baseline.machine import Machine
from msprobe.baseline.store import DUMP, HEAD, SCHEMA, Store
from msprobe.cli import main
from msprobe.dump.errors import DumpError

from .project import commit, git, make_project

MACHINE = Machine("x86_64", "CPU", "avx2", "", "cpu", "torch", "2.13.0", 1)


def packed(change: Callable[[zipfile.ZipFile], None]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_LZMA) as archive:
        change(archive)
    return content.getvalue()


def usual(archive: zipfile.ZipFile) -> None:
    archive.writestr("step0/rank/dump.json", json.dumps({"task": "statistics", "level": "mix", "data": {}}))


def stored(root: Path, content: bytes, **changes: Any) -> Path:
    """A store with one baseline, whose checksum fits its content."""
    place = root / "tiny" / MACHINE.key
    place.mkdir(parents=True)
    head = {"schema": SCHEMA, "name": "tiny", "machine": vars(MACHINE), "command": ["x"], "commit": None, "saved": "",
            "msprobe": "1", "exact": None, "steps": [0], "seed": None, "calls": 1, "bare_seconds": None,
            "sha256": hashlib.sha256(content).hexdigest(), **changes}  # fmt: skip
    (place / HEAD).write_text(json.dumps(head))
    (place / DUMP).write_bytes(content)
    return root


def encrypted() -> bytes:
    """The flag of an encrypted entry, in both headers."""
    content = bytearray(packed(usual))
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    return bytes(content)


def damaged_lzma() -> bytes:
    content = bytearray(packed(usual))
    start = content.index(b"dump.json") + len("dump.json")
    content[start + 4 : start + 9] = b"\xff\xff\xff\xff\xff"  # properties: a dictionary of 4 GiB, lc/lp/pb out of range
    return bytes(content)


def damaged_deflate() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        usual(archive)
    data = bytearray(content.getvalue())
    start = data.index(b"dump.json") + len("dump.json")
    data[start : start + 8] = b"\xff" * 8
    return bytes(data)


def many_entries() -> bytes:
    """A central directory with a million entries: each becomes an object when the archive is opened."""
    content = bytearray(packed(usual))
    start, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entry = bytes(content[start:end])
    directory = entry * 200_000
    tail = bytearray(content[end:])
    tail[12:20] = struct.pack("<II", len(directory), start)
    return bytes(content[:start]) + directory + bytes(tail)


ARCHIVES = {
    "encrypted": encrypted,
    "lzma": damaged_lzma,
    "deflate": damaged_deflate,
    "many entries": many_entries,
    "no archive": lambda: b"PK\5\6" + bytes(18),
    "outside": lambda: packed(lambda archive: archive.writestr("../../dump.json", "{}")),
    "a rank outside": lambda: packed(lambda archive: archive.writestr("step0/../dump.json", "{}")),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_any_content_is_one_sentence(tmp_path: Path, name: str) -> None:
    store = Store(stored(tmp_path / "store", ARCHIVES[name]()))
    (baseline,) = store.of_name("tiny")
    if name == "no archive":  # an empty one: no dump in it
        assert store.unpack(baseline, tmp_path / "out") == tmp_path / "out"
        return
    with pytest.raises(DumpError, match=r"damaged|too many"):
        store.unpack(baseline, tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) in (["store"], ["out", "store"])


@pytest.mark.parametrize(
    "changes",
    [{"steps": [-1]}, {"steps": [True]}, {"steps": [10**30]}, {"seed": 10**400}, {"seed": True},
     {"bare_seconds": float("nan")}, {"bare_seconds": -1.0}, {"commit": "--output=x"}, {"steps": []}],
    ids=str,
)  # fmt: skip
def test_a_head_with_impossible_values_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DumpError, match="damaged"):
        Store(stored(tmp_path, packed(usual), **changes)).of_name("tiny")


def test_list_and_remove_say_what_is_wrong_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = stored(tmp_path / "store", packed(usual))
    place = root / "tiny" / MACHINE.key
    (place / DUMP).unlink()
    assert main(["baseline", "list", "--in", str(root)]) in (0, 2)
    (place / DUMP).symlink_to("/nowhere")
    assert main(["baseline", "list", "--in", str(root)]) in (0, 2)
    target = tmp_path / "precious"
    place.rename(target)
    place.symlink_to(target)
    for words in (["tiny", "--in", str(root)], ["--in", str(root), "tiny"]):
        assert main(["baseline", "remove", *words]) == 2
        assert "tiny" in capsys.readouterr().err
    assert (target / HEAD).exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_commit_of_a_baseline_is_no_option_of_git(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / "net.py").write_text("x = 1\n")
    commit(project, "Change")
    for word in (f"--output={tmp_path / 'written'}", "--no-index", "HEAD:net.py", "-p"):
        changed_lines(project, word, [], "")
    assert not (tmp_path / "written").exists()
    assert git(project, "status", "--porcelain") in ("", None)


def test_names_in_an_answer_give_github_no_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from msprobe.cli.check import print_answer

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = ["Differs: x", "::add-mask::a", "  ##[group]b", "::stop-commands::c"]
    print_answer(lines, github=True)
    first, *shown, last = capsys.readouterr().out.splitlines()
    assert first.startswith("::stop-commands::")
    token = first.removeprefix("::stop-commands::")
    assert len(token) >= 32
    assert last == f"::{token}::"
    assert shown == lines
    print_answer(lines, github=False)
    assert capsys.readouterr().out.splitlines() == lines


def test_the_directory_of_ranks_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A different user may have made it first, or a link in its place."""
    from msprobe.testing.block import own_directory

    made = own_directory(tmp_path / "numerics")
    assert made.stat().st_mode & 0o777 == 0o700
    assert own_directory(made) == made
    (tmp_path / "link").symlink_to(made)
    with pytest.raises(DumpError, match="not a directory of this user"):
        own_directory(tmp_path / "link")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(DumpError, match="not a directory of this user"):
        own_directory(open_to_all)
    if os.getuid() == 0:
        os.chown(made, 12345, 12345)
        with pytest.raises(DumpError, match="not a directory of this user"):
            own_directory(made)
