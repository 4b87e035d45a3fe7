"""The commit of the script's repository, read without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from msprobe.collect.run.git_commit import commit_of


def git(directory: Path, *arguments: str) -> str:
    base = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run([*base, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    (path / "inner").mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "commit", "-q", "--allow-empty", "-m", "one")
    return path


def test_a_branch_packed_references_a_detached_head_and_a_worktree(repository: Path, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository / "inner") == head
    git(repository, "pack-refs", "--all")
    commit_of.cache_clear()
    assert commit_of(repository) == head
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    assert commit_of(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != head
    git(repository, "checkout", "-q", "--detach")
    commit_of.cache_clear()
    assert commit_of(repository) == head


def test_no_repository_and_a_damaged_one(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    for number, text in enumerate(("ref: refs/heads/nothing", "ref: ../../../../etc/passwd", "\0", "f" * 39)):
        place = tmp_path / str(number)
        (place / ".git").mkdir(parents=True)
        (place / ".git" / "HEAD").write_text(text)
        assert commit_of(place) is None
