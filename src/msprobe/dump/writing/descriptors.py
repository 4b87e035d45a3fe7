"""A file descriptor that the script may close: a script that closes all descriptors closes ours too.

The number is then free, and the next file of the script gets it. So msprobe checks before each use whether the
descriptor is still the file that it opened.
"""

from __future__ import annotations

import os
from typing import Optional


class Descriptor:
    """An open file or directory of msprobe."""

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
