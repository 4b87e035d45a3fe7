"""Notes in the dump what could not be written, and reads such notes.

After a disk was full for a moment, a step looks complete. So the writer notes in dump_error_info.log how much is
missing. If there is no space even for that, the log is empty, and that is the sign.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Optional

from msprobe.dump import layout
from msprobe.dump.untrusted.regular_files import open_regular
from msprobe.messages import Message

_READ_UP_TO = 1 << 20
_COUNT = re.compile(rb"^(\d{1,18}) records? or files? could not be written", re.MULTILINE)


def entry(count: int) -> str:
    """The entry for the log. A later entry of the same directory includes the count of earlier ones."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{stamp} {layout.JOURNAL}\n{_missing(count)}: this directory is incomplete.\n\n"


def trouble(rank_dir: Path) -> Optional[str]:
    """What the log of a rank directory says, as the end of a sentence; None without a log."""
    try:
        with open_regular(rank_dir / layout.ERRORS, rank_dir) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_UP_TO))
            counts = _COUNT.findall(file.read(_READ_UP_TO))
    except OSError:
        return None
    if counts:
        return _missing(int(counts[-1]))
    return Message("dump.log_entries" if size else "dump.log_empty", file=layout.ERRORS)


def _missing(count: int) -> Message:
    return Message("dump.not_written", number=count)
