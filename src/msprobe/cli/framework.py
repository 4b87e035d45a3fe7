"""`msprobe -f FRAMEWORK VERB …`: the form of older mindstudio-probe versions. The dump names its framework itself."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump


def check_framework(given: Optional[str], rank: RankDump) -> None:
    """Raises DumpError if -f names another framework than the dump."""
    found = rank.head.get("framework")
    if given is not None and found is not None and found != given:
        raise DumpError(f"{rank.path} is a {found} dump, not a {given} dump; leave -f {given} out.")


_MODULES = {"pytorch": ("torch", "PyTorch"), "mindspore": ("mindspore", "MindSpore")}


def require_framework(framework: str, work: str) -> None:
    """Raises DumpError if the framework that `work` needs is not installed."""
    module, name = _MODULES[framework]
    if find_spec(module) is None:
        raise DumpError(
            f'{work} needs {name}, which is not installed here: pip install "msprobe-precision[{framework}]".'
        )
