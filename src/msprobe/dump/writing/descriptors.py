"""A file descriptor that may be taken away: a script that closes all descriptors closes ours too.

The number is then free, and the next file of the script gets it. So before a descriptor is used, it is asked whether
it is still the file that was opened.
"""

from __future__ import annotations

import os
from typing import Optional


class Descriptor:
    """An open file or directory of ours."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _file(number)

    def is_ours(self) -> bool:
        return _file(self.number) == self._file

    def close(self) -> None:
        if self.is_ours():
            os.close(self.number)


def _file(number: int) -> Optional[tuple[int, int]]:
    try:
        found = os.fstat(number)
    except OSError:  # it is closed
        return None
    return found.st_dev, found.st_ino
