"""The examples in README and guide are run as written, and must print what is written next to them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from msprobe.config import load

from .documents import ROOT, Block, blocks

CHECKED = (
    "README.md",
    "docs/guide.md",
    "docs/run_ut.md",
    "docs/watch.md",
    "docs/ci.md",
    "docs/again.md",
    "docs/prove.md",
    "docs/precision.md",
)
TRANSLATED = {
    "docs/zh/guide.md": "docs/guide.md",
    "docs/zh/again.md": "docs/again.md",
    "docs/zh/prove.md": "docs/prove.md",
    "docs/zh/precision.md": "docs/precision.md",
}
HOME = "/home/you"
RUN = {"python": [sys.executable, "-"], "sh": ["bash", "-e"]}


def runnable(path: str) -> list[Block]:
    return [block for block in blocks(ROOT / path) if block.action or block.language in ("python", "sh", "json")]


@pytest.mark.parametrize("path", [*CHECKED, *TRANSLATED])
def test_every_example_says_what_is_done_with_it(path: str) -> None:
    assert [block.line for block in runnable(path) if not block.action] == []
    assert any(block.action == "run" for block in runnable(path))


@pytest.fixture(scope="module")
def run_examples(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, str]]]:
    """Runs the examples of a page once. Returns the directory where, and what each block printed."""

    @functools.cache
    def run(path: str) -> tuple[Path, dict[str, str]]:
        place = tmp_path_factory.mktemp("examples")
        home = place / "home"
        home.mkdir()
        (home / "examples").symlink_to(ROOT / "examples")
        environment = {**os.environ, "PATH": f"{_commands(place)}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
        printed: dict[str, str] = {}
        last = ""
        for block in runnable(path):
            where = f"{path}:{block.line}"
            if block.action == "file":
                assert Path(block.detail).name == block.detail, where
                (home / block.detail).write_text(block.text, encoding="utf-8")
                if block.language == "json":
                    load("pytorch", home / block.detail)
            elif block.action == "run":
                done = subprocess.run(
                    RUN[block.language], input=block.text, cwd=home, env=environment, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                )  # fmt: skip
                assert done.returncode == int(block.detail or 0), f"{where}\n{done.stdout}"
                last = printed[block.text] = done.stdout.replace(str(home), HOME).replace(str(ROOT), HOME)
            elif block.action == "output":
                known = {_comparable(line) for line in last.splitlines()}
                missing = [line for line in block.text.splitlines() if line != "…" and _comparable(line) not in known]
                assert missing == [], f"{where}: not printed, but\n{last}"
        return home, printed

    return run


@pytest.mark.parametrize("path", CHECKED)
def test_examples_run_as_written(run_examples: Callable[[str], tuple[Path, dict[str, str]]], path: str) -> None:
    assert run_examples(path)[1]


@pytest.mark.parametrize(("path", "original"), TRANSLATED.items())
def test_a_translation_has_the_same_examples(path: str, original: str) -> None:
    assert [_code(block) for block in runnable(path)] == [_code(block) for block in runnable(original)]


def test_the_demo_names_the_fault_that_it_planted(
    run_examples: Callable[[str], tuple[Path, dict[str, str]]],
) -> None:
    home, printed = run_examples("README.md")
    answer = printed["python examples/demo.py\n"].partition("msprobe compare")[2]
    origin = next(line for line in answer.splitlines() if line.startswith("Origin"))
    assert "Functional.layer_norm.3.forward in Module.blocks.1.norm2.LayerNorm" in origin
    assert (home / "demo_output" / "report.html").stat().st_size > 1000


def _commands(tmp_path: Path) -> Path:
    """`msprobe`, `python` and `torchrun` of this environment, with any PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    modules = {"msprobe": "-m msprobe", "torchrun": "-m torch.distributed.run --master_port 29633", "python": ""}
    for name, module in modules.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def _comparable(line: str) -> str:
    """Without what differs from one processor or day to the next: digits behind a point, times, runs of blanks."""
    line = re.sub(r"old-\d+-\d+", "old-#", line)
    return " ".join(re.sub(r"\d+\.\d+(e[-+]\d+)?", "#", line).split())


def _code(block: Block) -> tuple[str, str, str, str]:
    """What runs: comments are translated."""
    code = re.sub(r"# .*$", "#", block.text, flags=re.M) if block.language != "" else ""
    return (
        block.language,
        block.action,
        block.detail.partition(":")[0] if block.action == "not run" else block.detail,
        code,
    )
