"""Helpers for this directory: the nets and the planted kernels lie beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
