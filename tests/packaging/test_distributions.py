"""The source distribution has everything that is needed to build, and a wheel made from it has everything to run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = (".json", ".yaml", ".html", ".js", ".css", ".proto")
BUILD = "import setuptools.build_meta as b; print(b.build_{}(r'{}'))"


def build(kind: str, source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD.format(kind, target)]
    ended = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return target / ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy of what is under version control, so that nothing is left in the repository."""
    top = tmp_path_factory.mktemp("sdist")
    copy = top / "msprobe"
    ignored = shutil.ignore_patterns(".*", "*.so", "*.egg-info", "__pycache__", "build", "tests", "benchmarks")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return build("sdist", copy, top / "dist")


def test_the_source_distribution_has_every_source_and_data_file(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*")
        if path.suffix in (".py", ".pyi", ".c", ".h", *DATA) or path.name == "py.typed"
        if "egg-info" not in str(path)
    }
    assert wanted <= packed
    assert {"LICENSE", "README.md", "docs/guide.md", "setup.py"} <= packed


def test_the_page_for_a_package_index_has_no_link_into_the_repository(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        (name,) = (one for one in archive.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", one))
        member = archive.extractfile(name)
        assert member is not None
        text = member.read().decode()
    assert "Classifier: Typing :: Typed" in text
    assert "License-Expression: Apache-2.0" in text
    assert "the first call whose numbers are wrong" in text
    assert not re.search(r"\]\((?!https?:)", text)


@pytest.mark.slow
def test_a_wheel_made_from_it_is_complete(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    wheel = build("wheel", source, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "msprobe").rglob("*")
        if path.suffix in (".py", *DATA) or path.name == "py.typed"
    }
    assert wanted <= packed
    if shutil.which("cc"):
        assert sum(name.endswith(".so") for name in packed) == 4
