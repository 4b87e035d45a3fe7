"""The quality suite is scripts beside each other: its folder is on the path while these tests run.

Other benchmarks have scripts of the same names, which other tests import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"


@pytest.fixture(scope="module", autouse=True)
def suite() -> Iterator[Path]:
    names = {path.stem for path in SUITE.iterdir()}
    others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}
    before = set(sys.modules)
    sys.path.insert(0, str(SUITE))
    yield SUITE
    sys.path.remove(str(SUITE))
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(SUITE):
            del sys.modules[name]
    sys.modules.update(others)
