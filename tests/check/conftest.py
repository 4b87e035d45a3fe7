"""Helpers for this directory: the nets and the planted kernels are next to the tests, the browser next to the
reports."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
sys.path.insert(0, str(Path(__file__).parent))
