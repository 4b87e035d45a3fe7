"""A dump of saved tensors as the dump of statistics that the same run would have written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_TENSORS = "dump_tensor_data"


def strip_tensors(dump: Path, copy: Path) -> None:
    """Copies a dump without tensor files and without their names."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dump, copy, ignore=shutil.ignore_patterns(_TENSORS, "journal.jsonl"))
    for file in copy.rglob("dump.json"):
        content = json.loads(file.read_text())
        content.update(task="statistics", dump_data_dir=None)
        file.write_text(json.dumps(_without_files(content)))
    for file in copy.rglob("run.json"):
        header = json.loads(file.read_text())
        header["settings"]["task"] = "statistics"
        file.write_text(json.dumps(header))


def _without_files(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_files(one) for key, one in value.items() if key != "data_name"}
    return [_without_files(one) for one in value] if isinstance(value, list) else value
