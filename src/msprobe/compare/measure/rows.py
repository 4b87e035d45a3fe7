"""Fills in how far the two sides of each row are apart, from the best evidence that both dumps have.

Saved tensors where both have them, else statistics, else checksums. A row that cannot be measured gets the reason,
never a number.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.inputs import Source
from msprobe.compare.measure import distance
from msprobe.compare.measure.tensors import NotComparable, TensorMetrics, compare_files
from msprobe.compare.rows import ERROR, OTHER_BYTES, Row, is_tensor
from msprobe.dump.errors import DumpError

Files = tuple[Path, Path]
SAME_STATISTICS = 1e-12
"""Statistics that agree this well are of the same numbers: rounding anywhere would show."""


def from_records(row: Row) -> None:
    """What dump.json alone can tell."""
    target, golden = row.target, row.golden
    side = row.absent
    if side:
        what = "call" if row.match.how == "unmatched" else "item"
        row.reason = f"unmatched: the {'golden run' if side == 'golden' else side} has no such {what}"
        return
    if target is None or golden is None:
        row.distance = math.inf
        row.verdict = ERROR
        empty, full = ("target", "golden run") if target is None else ("golden run", "target")
        row.reason = f"null in the {empty}, a value in the {full}"
        return
    tensors = is_tensor(target), is_tensor(golden)
    if not any(tensors):
        row.distance, row.reason = distance.of_values(target, golden)
        if row.distance is None:
            row.reason = "kind: " + row.reason
        return
    if not all(tensors):
        row.reason = "kind: a tensor on one side, a plain value on the other"
        return
    unreadable = target.get("unreadable") or golden.get("unreadable")
    if unreadable:
        row.reason = f"unreadable: {unreadable}"
        return
    if target["shape"] != golden["shape"]:
        row.reason = f"shape: {target['shape']} and {golden['shape']}"
        return
    _tensor_records(row, target, golden)


def _tensor_records(row: Row, target: dict[str, Any], golden: dict[str, Any]) -> None:
    ours, theirs = target.get("md5"), golden.get("md5")
    if ours is not None and theirs is not None:
        if ours == theirs:
            row.distance = 0.0
            return
        if _same_dtype(target, golden) and golden.get("Max") is None:
            row.distance, row.reason = math.inf, "the checksums differ"
            return
    row.distance, row.reason = distance.of_statistics(target, golden)
    if row.distance is None:
        row.reason = "kind: " + row.reason
    elif None not in (ours, theirs) and row.distance < SAME_STATISTICS and _same_dtype(target, golden):
        _other_bytes(row, golden)


def _other_bytes(row: Row, golden: dict[str, Any]) -> None:
    """Equal statistics, other checksums. Statistics that were rounded to float32 may hide the last bit of an element;
    ours would show it, and then the elements are the same but for their order."""
    low, high = distance.number(golden.get("Min")), distance.number(golden.get("Max"))
    if distance.count(golden) == 1:
        return
    row.distance = 0.5 * distance.epsilon(golden)
    if low is not None and high is not None and distance.is_masked(low, high):
        return
    exact = [value for value in (golden.get("Mean"), golden.get("Norm")) if isinstance(value, float)]
    if any(not _is_float32(value) for value in exact):
        row.reason = OTHER_BYTES


def _is_float32(value: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
    except OverflowError:
        return False


def _same_dtype(target: dict[str, Any], golden: dict[str, Any]) -> bool:
    return distance.dtype_name(target) == distance.dtype_name(golden)


def files_of(row: Row, target: Source, golden: Source) -> Optional[Files]:
    """The two tensor files of a row, where both sides have one."""
    if row.absent or row.target is None or row.golden is None:
        return None
    ours, theirs = row.target.get("data_name"), row.golden.get("data_name")
    if not ours or not theirs or row.reason.startswith("shape"):
        return None
    try:
        return target.tensor_path(ours), golden.tensor_path(theirs)
    except DumpError as error:
        row.distance, row.reason = None, f"unreadable: {error}"
        return None


def measure_files(files: Files) -> tuple[Optional[TensorMetrics], str]:
    """For a worker process: paths in, numbers or a reason out."""
    try:
        return compare_files(*files), ""
    except NotComparable as error:
        return None, str(error)


def apply(row: Row, metrics: Optional[TensorMetrics], reason: str) -> None:
    """A file that cannot be read is said, and the row is not compared: statistics do not stand in for it."""
    row.measured = metrics
    if metrics is None:
        row.distance, row.reason = None, reason
        return
    row.distance, row.reason = metrics.distance, ""
    if metrics.special:
        row.reason = f"{metrics.special} NaN or infinite elements differ, the first at index {metrics.first_special}"
    elif metrics.different:
        row.reason = f"{metrics.different} of {metrics.elements} elements differ"
