"""Task structure: records which calls run and where, without their data."""

from __future__ import annotations

from msprobe.collect.task import Task


class Structure(Task):
    name = "structure"
    with_data = False


TASK = Structure
