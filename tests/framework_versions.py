"""The versions of the frameworks under test, and the tests that need newer ones: `make versions` runs older ones too.

A test that cannot work with an older framework has a line in NEEDS, with the reason. There is no other place for it.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

Release = tuple[int, ...]


class Need(NamedTuple):
    """Tests whose place begins with `place` need at least this release of the package."""

    place: str
    package: str
    release: Release
    reason: str


NEEDS: tuple[Need, ...] = ()


def release(package: str) -> Release:
    """(2, 13) for 2.13.0+cpu; empty if it is not installed."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def missing(place: str) -> str:
    """Why a test cannot run with the installed frameworks; "" if it can."""
    for need in NEEDS:
        found = release(need.package)
        if place.startswith(need.place) and found and found < need.release:
            wanted = ".".join(map(str, need.release))
            return f"needs {need.package} {wanted}: {need.reason}"
    return ""
