"""A debugger around a block of a test, and its dump read as plain JSON."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.dump.tensor_files.codec import load
from msprobe.mindspore import PrecisionDebugger

STATISTICS = ("Max", "Min", "Mean", "Norm")


class Dump:
    """The files of one rank directory."""

    def __init__(self, root: Path, step: int = 0, rank: str = "rank") -> None:
        self.directory = root / f"step{step}" / rank

    def json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())

    @property
    def data(self) -> dict[str, Any]:
        return self.json("dump.json")["data"]

    @property
    def names(self) -> list[str]:
        return list(self.data)

    @property
    def construct(self) -> dict[str, Any]:
        return self.json("construct.json")

    @property
    def debug(self) -> dict[str, Any]:
        return self.json("debug.json")["data"]

    @property
    def errors(self) -> str:
        path = self.directory / "dump_error_info.log"
        return path.read_text() if path.exists() else ""

    def tensor(self, record: dict[str, Any]) -> np.ndarray:
        return load(self.directory / "dump_tensor_data" / record["data_name"])

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


def configured(path: Path, level: str = "L1", task: str = "statistics", section: Any = None, **keys: Any) -> str:
    """Writes a config.json; returns its path."""
    content = {"task": task, "level": level, "dump_path": str(path / "dump"), **keys}
    content[task] = section or {}
    path.mkdir(parents=True, exist_ok=True)
    file = path / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


@contextmanager
def collecting(path: Path, model: Any = None, *, token_range: Any = None, faults: bool = False, **config: Any) -> Any:
    """One step: start before the block, stop and step after it. Yields the dump, to be read after the block."""
    debugger = PrecisionDebugger(configured(path, **config))
    dump = Dump(path / "dump")
    debugger.start(model, token_range)
    try:
        yield dump
    finally:
        debugger.stop()
        debugger.step()
    if not faults:
        assert not dump.errors, dump.errors


def assert_same(record: Any, value: Any, rel: float = 1e-5) -> None:
    """A tensor's record has the tensor's shape and its statistics as numpy computes them in float64."""
    if value is None or record is None:
        assert record is value, (record, value)
        return
    array = value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
    assert record["shape"] == list(array.shape), (record, array.shape)
    if not array.size:
        assert all(record[key] is None for key in STATISTICS), record
        return
    exact = np.abs(array).astype(np.float64) if np.iscomplexobj(array) else array.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = exact.max(), exact.min(), exact.mean(), np.sqrt((exact**2).sum())
    for key, number in zip(STATISTICS, expected):
        found = record[key]
        same = found != found if math.isnan(number) else math.isclose(found, number, rel_tol=rel, abs_tol=1e-7)
        assert same, (key, record, expected)
