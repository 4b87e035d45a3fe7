"""The cells of a notebook: a stack names them by their number, as the notebook does, not by a temporary file."""

from __future__ import annotations

import linecache
import sys

_files: dict[str, str] = {}
"""The file name of the code by the name of the cell."""


def name_of(file: str) -> str:
    """`Cell In[3]` for the code of a cell of IPython or Jupyter; every other file keeps its name."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    named = getattr(getattr(get_shell and get_shell(), "compile", None), "format_code_name", None)
    parts = None if named is None else named(file)
    if not parts:
        return file
    name = " ".join(parts)
    _files[name] = file
    return name


def lines_of(name: str) -> list[str]:
    """The source lines of a file or a cell; none if it cannot be read."""
    return linecache.getlines(_files.get(name, name))
