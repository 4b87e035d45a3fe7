"""The parts of a dump that exist in C too, if they could be built; MSPROBE_PURE_PYTHON=1 selects Python.

The Python versions are in the modules that use them and are the reference: both give the same bytes.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Optional


def load(name: str) -> Optional[ModuleType]:
    """A C module, or None if Python is selected or the module was not built."""
    if os.environ.get("MSPROBE_PURE_PYTHON") == "1":
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


journal = load("msprobe.dump.native._journal")
"""The lines of a journal."""
