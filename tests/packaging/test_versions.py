"""The range of supported versions: what is refused, what is warned about, and that every text says the same."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import framework_versions
from msprobe.cli.run import ScriptImports
from msprobe.frameworks.versions import MINDSPORE, PYTORCH, Range, UnsupportedVersion, check_version, problem_of
from msprobe.stats import dtypes

ROOT = Path(__file__).resolve().parents[2]
ROWS = json.loads((ROOT / "benchmarks" / "versions" / "list.json").read_text())
BOTH = pytest.mark.parametrize("supported", [PYTORCH, MINDSPORE], ids=lambda one: one.package)


def _runner() -> Any:
    spec = importlib.util.spec_from_file_location("versions_runner", ROOT / "benchmarks" / "versions" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = runner  # dataclasses look for it
    spec.loader.exec_module(runner)
    return runner


def dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


@BOTH
def test_the_ends_of_the_range_are_inside(supported: Range) -> None:
    for release in (supported.oldest, supported.newest):
        for version in (dotted(release), f"{dotted(release)}.1", f"{dotted(release)}.0+cpu", f"{dotted(release)}.0rc1"):
            assert problem_of(supported, version) == ""


@BOTH
def test_an_older_version_is_refused_in_one_sentence_with_the_range(supported: Range) -> None:
    with pytest.raises(UnsupportedVersion) as error:
        check_version(supported, "2.1.0", pytest.fail)
    assert str(error.value) == (
        f"msprobe needs {supported.words} {supported.text} and found 2.1.0: "
        f"pip install '{supported.package}>={dotted(supported.oldest)}'"
    )


@BOTH
def test_a_newer_version_works_with_one_warning(supported: Range) -> None:
    said: list[str] = []
    check_version(supported, "2.99.0", said.append)
    assert len(said) == 1
    assert supported.text in said[0]


@pytest.mark.parametrize("version", ["", "git1234", "master"])
def test_a_version_without_a_number_is_accepted(version: str) -> None:
    check_version(PYTORCH, version, pytest.fail)


def imported(framework: str, package: str, version: str) -> subprocess.CompletedProcess[str]:
    """The real framework, with a different number."""
    code = f"import {package}\n{package}.__version__ = {version!r}\nimport msprobe.{framework}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("framework", "supported"), [("pytorch", PYTORCH), ("mindspore", MINDSPORE)])
def test_importing_the_frontend_checks_the_version(framework: str, supported: Range) -> None:
    old = imported(framework, supported.package, "2.1.0")
    assert old.returncode == 1
    assert old.stderr.strip().splitlines()[-1].endswith(problem_of(supported, "2.1.0"))
    new = imported(framework, supported.package, "2.99.0")
    assert new.returncode == 0
    assert new.stderr.count(problem_of(supported, "2.99.0")) == 1


def test_a_command_that_runs_a_script_ends_with_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    class Imports(ScriptImports):
        def _after_torch_import(self) -> None:
            raise UnsupportedVersion("msprobe needs PyTorch 2.6")

    imports = Imports()
    with pytest.raises(SystemExit) as end:
        imports._act(imports._after_torch_import)
    assert end.value.code == 2
    assert imports.refused
    assert capsys.readouterr().err == "msprobe needs PyTorch 2.6.\n"


def test_every_text_has_the_same_range() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"torch>={dotted(PYTORCH.oldest)}"' in project
    assert f'"mindspore>={dotted(MINDSPORE.oldest)}"' in project
    for page in ("README.md", "docs/package.md", "docs/versions.md"):
        text = (ROOT / page).read_text().replace("*", "")
        assert f"PyTorch {PYTORCH.text}" in text, page
        assert f"MindSpore {MINDSPORE.text}" in text, page
    pythons = sorted({tuple(map(int, row["python"].split("."))) for row in ROWS})
    claimed = sorted(tuple(map(int, one)) for one in re.findall(r"Python :: (3)\.(\d+)", project))
    assert claimed == pythons


def test_the_pages_name_the_release_that_has_the_backward_graph() -> None:
    (need,) = (one for one in framework_versions.NEEDS if one.pattern == "mindspore/test_backward.py::*")
    release = f"MindSpore {dotted(need.release)}"
    assert f"| backward records on MindSpore | {release} |" in (ROOT / "docs" / "versions.md").read_text()
    assert f"The backward graph needs {release}." in (ROOT / "docs" / "mindspore.md").read_text()


def test_a_row_of_the_table_has_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = _runner()
    page = tmp_path / "versions.md"
    page.write_text(f"before\n{runner.BEGIN}\nold\n{runner.END}\nafter\n")
    monkeypatch.setattr(runner, "PAGE", page)
    row = runner.Row("3.11", "2.15.0", "2.10.0", date="2026-11-18", commit="0123abcd+", demos={"torch": True}, passed=7)
    runner.write_page([row])
    _, _, header, _, line, *_ = page.read_text().splitlines()
    assert header.endswith("| date | commit |")
    assert line == "| 3.11 | 2.15.0 | 2.10.0 | work | 7 passed | 2026-11-18 | 0123abcd+ |"


def test_the_list_has_both_ends_of_the_range_and_two_between() -> None:
    for supported in (PYTORCH, MINDSPORE):
        releases = {tuple(map(int, row[supported.package].split(".")[:2])) for row in ROWS}
        assert {supported.oldest, supported.newest} <= releases
        assert len(releases) >= 4


def test_the_page_has_a_row_for_each_pair() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    for row in ROWS:
        assert f"| {row['python']} | {row['torch']} | {row['mindspore']} |" in page


def test_tests_that_need_a_newer_framework_exist() -> None:
    for need in framework_versions.NEEDS:
        file, _, part = need.pattern.partition("::")
        words = (ROOT / "tests" / file).read_text()
        assert part.strip("*") in words or part.strip("*") in dtypes.BY_NAME, need
