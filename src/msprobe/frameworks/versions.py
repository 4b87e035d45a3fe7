"""The supported range of each framework, and the version that a feature needs.

The frontends and the readers that run a framework's calls call `check_version` before they touch the framework. What a
version has or lacks is looked for where it is used, by name (`pytorch/features.py`, `mindspore/features.py`): the
numbers here are only for sentences. `make versions` runs the range: docs/versions.md.
"""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Optional

Release = tuple[int, int]


class Range(NamedTuple):
    """The releases of a framework that were run with msprobe, both ends included."""

    words: str
    package: str
    oldest: Release
    newest: Release

    @property
    def text(self) -> str:
        return f"{_dotted(self.oldest)} to {_dotted(self.newest)}"


PYTORCH = Range("PyTorch", "torch", (2, 6), (2, 15))
MINDSPORE = Range("MindSpore", "mindspore", (2, 7), (2, 10))


class UnsupportedVersion(ImportError):
    """The framework is older than the supported range."""


def check_version(supported: Range, version: str, warn: Callable[[str], None]) -> None:
    """Refuses a version below the range; above it, `warn` gets one sentence."""
    refuse_old(supported, version)
    problem = problem_of(supported, version)
    if problem:
        warn(problem)


def refuse_old(supported: Range, version: str) -> None:
    """Raises UnsupportedVersion below the range."""
    if is_below(supported, version):
        raise UnsupportedVersion(problem_of(supported, version), name=supported.package)


def problem_of(supported: Range, version: str) -> str:
    """One sentence about a version outside of the range; "" inside of it, or if the version cannot be read."""
    release = _release(version)
    if release is None or supported.oldest <= release <= supported.newest:
        return ""
    if is_below(supported, version):
        install = f"pip install '{supported.package}>={_dotted(supported.oldest)}'"
        return f"msprobe needs {supported.words} {supported.text} and found {version}: {install}"
    return f"{supported.words} {version} is newer than msprobe was tested with ({supported.text}): it should work."


def is_below(supported: Range, version: str) -> bool:
    """Whether msprobe refuses this version."""
    release = _release(version)
    return release is not None and release < supported.oldest


def _release(version: str) -> Optional[Release]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _dotted(release: Release) -> str:
    return ".".join(map(str, release))
