"""Baselines for CI: a small golden dump that lives in the repository, and whether a run still agrees with it.

`store` keeps baselines on disk, one per machine; `machine` says when two runs can be expected to agree bit by bit;
`verdict` turns a comparison into *same*, *same within rounding* or *differs*; `changed_lines` asks git which lines
changed since. How a run is collected is not known here.
"""

from __future__ import annotations

from msprobe.baseline.machine import Machine
from msprobe.baseline.store import Baseline, Store
from msprobe.baseline.verdict import Answer, check

__all__ = ["Answer", "Baseline", "Machine", "Store", "check"]
