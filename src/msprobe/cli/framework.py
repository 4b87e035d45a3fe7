"""`msprobe -f FRAMEWORK VERB …`: the field's older form. The dump says which framework it is of."""

from __future__ import annotations

from typing import Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump


def check_framework(given: Optional[str], rank: RankDump) -> None:
    """Raises DumpError where -f was given and the dump is of the other framework."""
    found = rank.head.get("framework")
    if given is not None and found is not None and found != given:
        raise DumpError(f"{rank.path} is a dump of {found}, not of {given}; leave -f {given} out.")
