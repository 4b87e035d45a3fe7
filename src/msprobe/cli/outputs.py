"""Checks where reports go before the work starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from msprobe.dump.errors import DumpError


def check_outputs(files: Iterable[Optional[Path]], directory: Optional[Path] = None) -> None:
    """Raises DumpError for a file that cannot be written, or a directory that cannot be created."""
    for path in files:
        if path is None:
            continue
        if path.is_dir():
            raise DumpError(f"{path} is a directory; give the name of a file for the report.")
        _check_directory(path, path.parent)
    if directory is not None:
        if directory.exists() and not directory.is_dir():
            raise DumpError(f"{directory} is a file; give a directory for the reports.")
        _check_directory(directory, next(place for place in (directory, *directory.parents) if place.exists()))


def _check_directory(path: Path, directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise DumpError(f"{path} cannot be written: {directory} is not a directory.")
    if not directory.is_dir():
        raise DumpError(f"{path} cannot be written: the directory {directory} does not exist. Create it first.")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DumpError(f"{path} cannot be written: no permission to write in {directory}.")
