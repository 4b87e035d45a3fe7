"""The quality suite is scripts beside each other: its folder is on the path while these tests run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"


@pytest.fixture(scope="module", autouse=True)
def suite() -> Iterator[Path]:
    before = set(sys.modules)
    sys.path.insert(0, str(SUITE))
    yield SUITE
    sys.path.remove(str(SUITE))
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(SUITE):
            del sys.modules[name]
