"""The names of the arguments of MindSpore's operators, by position: those of the call, then those that initialise it.

A graph has only their values. The table is that of MindSpore 2.10 (tests/graphdump/test_arguments.py compares both);
reading a dump needs no MindSpore.
"""

from __future__ import annotations

import json
from pathlib import Path

ARGUMENTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("arguments.json").read_text(encoding="utf-8"))
