"""`msprobe -f FRAMEWORK VERB …`: the form of older mindstudio-probe versions. The dump names its framework itself."""

from __future__ import annotations

from typing import Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump


def check_framework(given: Optional[str], rank: RankDump) -> None:
    """Raises DumpError if -f names another framework than the dump."""
    found = rank.head.get("framework")
    if given is not None and found is not None and found != given:
        raise DumpError(f"{rank.path} is a {found} dump, not a {given} dump; leave -f {given} out.")
