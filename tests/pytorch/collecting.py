"""A debugger around a block of a test, and its dump read as plain JSON."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import torch

from msprobe.pytorch import PrecisionDebugger

STATISTICS = ("Max", "Min", "Mean", "Norm")


class Dump:
    """The files of one rank directory."""

    def __init__(self, root: Path, step: int = 0, rank: str = "rank") -> None:
        self.directory = root / f"step{step}" / rank

    def _json(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())

    @property
    def data(self) -> dict[str, Any]:
        return self._json("dump.json")["data"]

    @property
    def names(self) -> list[str]:
        return list(self.data)

    @property
    def construct(self) -> dict[str, Any]:
        return self._json("construct.json")

    @property
    def stacks(self) -> dict[str, Any]:
        return self._json("stack.json")

    @property
    def debug(self) -> dict[str, Any]:
        return self._json("debug.json")["data"]

    @property
    def errors(self) -> str:
        path = self.directory / "dump_error_info.log"
        return path.read_text() if path.exists() else ""

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


def configured(path: Path, level: str = "L1", task: str = "statistics", section: Any = None, **keys: Any) -> str:
    """Writes a config.json; returns its path."""
    content = {"task": task, "level": level, "dump_path": str(path / "dump"), **keys}
    content[task] = section or {}
    file = path / "config.json"
    path.mkdir(parents=True, exist_ok=True)
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


def close(found: Any, expected: float, rel: float = 1e-5) -> bool:
    if math.isnan(expected):
        return found != found
    return found == expected or math.isclose(found, expected, rel_tol=rel, abs_tol=1e-7)


def same(record: Any, tensor: Optional[torch.Tensor], rel: float = 1e-5) -> bool:
    """Whether a tensor's record has the tensor's dtype, shape and (float64) statistics."""
    if tensor is None or record is None:
        return tensor is None and record is None
    if record["dtype"] != str(tensor.dtype) or record["shape"] != list(tensor.shape):
        return False
    if not tensor.numel():
        return all(record[key] is None for key in STATISTICS)
    exact = tensor.detach().double()
    expected = (exact.max(), exact.min(), exact.mean(), exact.norm())
    return all(close(record[key], float(value), rel) for key, value in zip(STATISTICS, expected))


def assert_same(record: Any, tensor: Optional[torch.Tensor], rel: float = 1e-5) -> None:
    if not same(record, tensor, rel):
        shown = None
        if tensor is not None and tensor.numel():
            exact = tensor.detach().double()
            shown = (tensor.dtype, tuple(tensor.shape), exact.max(), exact.min(), exact.mean(), exact.norm())
        raise AssertionError(f"{record} is not {shown}")
