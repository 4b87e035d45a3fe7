"""setup.py: an optional C part whose source is missing would be left out without a word."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def extensions(monkeypatch):
    found: list[setuptools.Extension] = []
    monkeypatch.setattr(setuptools, "setup", lambda **given: found.extend(given["ext_modules"]))
    exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__name__": "__main__"})
    return found


def test_every_source_and_header_is_there_and_every_c_file_is_built(extensions):
    named = {source for one in extensions for source in one.sources}
    assert not [source for source in named if not (ROOT / source).is_file()]
    assert not [header for one in extensions for header in one.depends if not (ROOT / header).is_file()]
    assert named == {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.c")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="without a compiler the C parts are left out")
def test_this_installation_has_every_c_part(extensions):
    for one in extensions:
        folder, _, name = one.name.rpartition(".")
        assert list((ROOT / "src" / folder.replace(".", "/")).glob(f"{name}.*.so")), f"{one.name} is not built"
