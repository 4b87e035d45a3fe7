"""Names from a model become file names that are safe, distinct and stable."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump import layout

ANY_NAME = st.text(st.characters(), min_size=0, max_size=400)


@given(ANY_NAME)
def test_any_name_gives_one_safe_path_component(name: str) -> None:
    file_name = layout.tensor_file_name(name, ".pt")
    assert layout.is_plain_file_name(file_name)
    assert file_name.isascii()
    assert file_name.isprintable()
    assert len(file_name) <= 255
    assert ".." not in file_name
    assert not file_name.startswith((".", "-"))
    assert " " not in file_name
    assert file_name.endswith(".pt")


@given(st.sets(ANY_NAME, min_size=2, max_size=30))
def test_two_names_never_share_a_file(names: set[str]) -> None:
    assert len({layout.tensor_file_name(name, ".npy") for name in names}) == len(names)


def test_the_names_of_records_stay_as_they_are() -> None:
    for name in (
        "Functional.relu.0.forward.input.0",
        "Module.l.Linear.forward.0.parameters.weight",
        "Tensor.__add__.0",
    ):
        assert layout.tensor_file_name(name, ".pt") == name + ".pt"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b", "a b", "a\0b", "", "..", ".", "-rf", "é", "\ud800", "a..b"]
)
def test_an_unsafe_name_is_replaced_and_marked_by_a_hash(name: str) -> None:
    assert "~" in layout.tensor_file_name(name, ".pt")


def test_names_that_look_the_same_once_made_safe_stay_apart() -> None:
    made = {layout.tensor_file_name(name, ".pt") for name in ("a b", "a/b", "a_b", "a\tb")}
    assert len(made) == 4
    assert "a_b.pt" in made


def test_only_a_name_that_would_not_have_fitted_is_listed() -> None:
    assert layout.is_over_long("x" * 253, ".pt")
    assert not layout.is_over_long("x" * 252, ".pt")
    assert layout.is_over_long("é" * 127, ".pt")


def test_rank_directories_of_every_generation_are_known() -> None:
    assert [layout.is_rank_name(name) for name in ("rank", "rank0", "proc123")] == [True, True, True]
    assert [layout.is_rank_name(name) for name in ("rank_0", "ranks", "proc", "rank0.old")] == [False] * 4
    assert [layout.parse_rank(name) for name in ("rank", "rank12", "proc123")] == [None, 12, None]
    assert layout.parse_step("step10") == 10
    assert layout.parse_step("step") is None
    assert layout.rank_directory(Path("d"), 3, 1, "graph") == Path("d/graph/step3/rank1")
    assert layout.dump_root(Path("d/graph/step3/rank1")) == Path("d")
    assert layout.dump_root(Path("d/step3/rank1")) == Path("d")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("umask", "directory", "file"), [(0o000, 0o750, 0o640), (0o077, 0o700, 0o600)])
def test_directories_and_files_have_our_mode_or_a_stricter_umask(
    tmp_path: Path, umask: int, directory: int, file: int
) -> None:
    before = os.umask(umask)
    try:
        layout.make_directory(tmp_path / "a/b/c")
        layout.write_file(tmp_path / "a/b/c/f", [b"x"])
    finally:
        os.umask(before)
    assert [_mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [directory] * 3
    assert _mode(tmp_path / "a/b/c/f") == file


def test_a_file_where_a_directory_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError):
        layout.make_directory(tmp_path / "a/b")


def test_a_symbolic_link_planted_under_our_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".dump.json.{os.getpid()}.tmp").symlink_to(victim)
    with pytest.raises(OSError):
        layout.write_file(tmp_path / "dump.json", [b"x"])
    assert victim.read_text() == "precious"
