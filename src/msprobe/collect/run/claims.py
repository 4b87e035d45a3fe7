"""The directories that a run writes to. Older dumps there are moved away first."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from msprobe.collect import notices
from msprobe.dump.archive import archive_older_run

_written: set[Path] = set()  # claimed by all debuggers of this process


class Claims:
    """The directories of one run."""

    def __init__(self) -> None:
        self._own: set[Path] = set()

    def __contains__(self, dump_path: Path) -> bool:
        return dump_path in self._own

    def claim(self, dump_path: Path, rank: Optional[int]) -> Path:
        """The directory to write to: `dump_path`, or a directory inside it while another run still writes there."""
        try:
            root, moved = archive_older_run(dump_path, rank, again=dump_path in _written)
        except OSError:
            return dump_path  # the writer gets the same error and logs it
        if root != dump_path:
            notices.warn(f"another run may still write to {dump_path}; this run writes to {root}.")
        if moved is not None:
            notices.inform(f"an earlier dump was in {root}; it is now in {moved}.")
        self._own |= {dump_path, root}
        _written.add(root)
        return root
