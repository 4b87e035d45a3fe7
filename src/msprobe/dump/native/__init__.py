"""The parts of a dump that exist in C too. The modules that use them have the Python versions."""

from __future__ import annotations

from msprobe.system.native import load

journal = load("msprobe.dump.native._journal")
"""The lines of a journal."""
