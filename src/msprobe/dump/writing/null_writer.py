"""The writer of a task that records nothing: no step directories; only an error of msprobe writes a file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msprobe.dump import layout
from msprobe.dump.writing.writer import Finished, RankWriter


class NullWriter(RankWriter):
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _add(self, *line: Any) -> None:
        """Nothing is recorded."""

    def begin(self, *line: Any) -> None:
        """Nothing is recorded."""

    def end(self, *line: Any) -> None:
        """Nothing is recorded."""

    def record(self, *line: Any) -> None:
        """Nothing is recorded."""

    def run_header(self, run: Mapping[str, Any]) -> None:
        """Does nothing: there is no directory to describe."""

    def error(self, name: str, text: str) -> None:
        layout.make_directory(self.directory)
        fd = layout.open_file(str(self.directory / layout.ERRORS), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            layout.write_all(fd, f"{stamp} {name}\n{text.rstrip()}\n\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)

    def flush(self) -> None:
        """Does nothing: everything is written at once."""

    def finish(self) -> Finished:
        return Finished()
