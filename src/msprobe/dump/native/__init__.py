"""The parts of a dump that exist in C too, if they could be built; MSPROBE_PURE_PYTHON=1 selects Python.

The Python versions are in the modules that use them and are the reference: both give the same bytes.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Optional

journal: Optional[ModuleType] = None
"""The lines of a journal."""

if os.environ.get("MSPROBE_PURE_PYTHON") != "1":
    try:
        from msprobe.dump.native import _journal as journal
    except ImportError:
        pass
