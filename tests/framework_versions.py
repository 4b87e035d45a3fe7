"""The versions of the frameworks under test, and the tests that need newer ones: `make versions` runs older ones too.

A test that cannot work with an older framework has a line in NEEDS, with the reason. There is no other place for it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from importlib import metadata
from typing import NamedTuple

Release = tuple[int, ...]


class Need(NamedTuple):
    """Tests whose place fits the pattern need at least this release of the package."""

    pattern: str
    package: str
    release: Release
    reason: str


_PIPELINES = "pipelines of torch 2.7 and 2.9 over gloo hang or abort, also without msprobe; 2.13 works"
_GRAPH = "2.7.0 does not show its backward graph: there are no backward records"

NEEDS: tuple[Need, ...] = (
    Need("pytorch/test_layouts.py::*gpipe*", "torch", (2, 13), _PIPELINES),
    Need("pytorch/test_layouts.py::*one_forward_one_backward*", "torch", (2, 13), _PIPELINES),
    Need("pytorch/test_layouts.py::*interleaved*", "torch", (2, 13), _PIPELINES),
    Need("pytorch/test_layouts.py::*zero_bubble*", "torch", (2, 13), _PIPELINES),
    Need("dump/test_tensors.py::*float8_e8m0fnu*", "torch", (2, 7), "older ones do not have this dtype"),
    Need("mindspore/test_backward.py::*", "mindspore", (2, 7, 1), _GRAPH),
    Need("mindspore/test_calls.py::test_mix_knows_what_ran_inside_what*", "mindspore", (2, 7, 1), _GRAPH),
)


@cache  # reading it takes 2 ms, and thousands of tests are looked at
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
        if fnmatchcase(place, need.pattern) and () < release(need.package) < need.release:
            wanted = ".".join(map(str, need.release))
            return f"needs {need.package} {wanted}: {need.reason}"
    return ""
