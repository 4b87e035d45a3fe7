"""Finds the parts that exist in C too. The Python version of each is its reference: both give the same bytes.

Without a compiler there are no C parts; MSPROBE_PURE_PYTHON=1 selects Python.
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
