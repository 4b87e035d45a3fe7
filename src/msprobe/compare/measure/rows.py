"""How far apart the two sides of each row are, by the best data that both dumps have: saved tensors, else statistics,
else checksums. A row that cannot be measured gets the reason, never a number.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.compare.calls import FORWARD, Call, Match
from msprobe.compare.measure import distance
from msprobe.compare.measure.broadcast import broadcasts, of_broadcast
from msprobe.compare.measure.tensors import NotComparable, TensorMetrics, compare_files
from msprobe.compare.reasons import NO_REASON, OTHER_BYTES, SIDES, Kind, Reason
from msprobe.compare.rows import EQUAL, Measurement, Row, is_tensor
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.messages import Message

Files = tuple[Path, Path]
SAME_STATISTICS = 1e-12
"""Statistics that agree this well come from the same numbers: any rounding would show."""


_ABSENT = {
    (side, alone): Reason(Kind.UNMATCHED, Message("absent.call" if alone else "absent.item", side=name))
    for side, name in SIDES.items()
    for alone in (True, False)
}
_NULL = {
    side: Reason(Kind.NULL, Message("absent.null", empty=name, full=SIDES["golden" if side == "target" else "target"]))
    for side, name in SIDES.items()
}


def from_records(row: Row) -> Measurement:
    """The measurement from dump.json alone. A damaged item affects only its own row."""
    try:
        return _from_records(row)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        why = Message("damaged.item", error=f"{type(error).__name__}: {error}")
        return Measurement(None, Reason(Kind.UNREADABLE, why))


def _from_records(row: Row) -> Measurement:
    target, golden = row.target, row.golden
    side = row.absent
    if target is not None and target == golden and not side and _is_known(target):
        return EQUAL
    if side:
        return Measurement(None, _ABSENT[side, row.match.how == "unmatched"])
    if target is None or golden is None:
        return Measurement(math.inf, _NULL["golden" if golden is None else "target"])
    tensors = is_tensor(target), is_tensor(golden)
    if not any(tensors):
        away, reason = distance.of_values(target, golden)
        return EQUAL if away == 0.0 else Measurement(away, reason, away or 0.0)
    if not all(tensors):
        return Measurement(None, Reason(Kind.KIND, Message("kind.plain")))
    unreadable = target.get("unreadable") or golden.get("unreadable")
    if unreadable:
        return Measurement(None, Reason(Kind.UNREADABLE, Message("error", text=str(unreadable))))
    unlike = target["dtype"] != golden["dtype"] and row.is_input
    if unlike and (_is_other_mask(target, golden) or _is_other_mask(golden, target)):
        return Measurement(None, Reason(Kind.HIDDEN, Message("hidden.mask")))
    if target["shape"] != golden["shape"]:
        if row.is_input:
            spread = of_broadcast(target, golden)
            if spread is not None and (not spread.distance or _gives_alike(row.match)):
                return spread
        shapes = Message("and", target=str(target["shape"]), golden=str(golden["shape"]))
        return Measurement(None, Reason(Kind.SHAPE, shapes))
    return _of_tensors(target, golden)


def _gives_alike(match: Match) -> bool:
    """The results of both calls have one shape, or can be broadcast too: only then may one run broadcast what the other
    is given complete. Else the calls work on other parts of the data (other tokens of an expert)."""
    results = [_first_result(call) for call in (match.target, match.golden)]
    known = [one for one in results if one is not None]
    if match.call.direction != FORWARD or len(known) < 2:
        return True
    small, large = sorted(known, key=distance.count)
    return broadcasts(small["shape"], large["shape"])


def _first_result(call: Optional[Call]) -> Optional[dict[str, Any]]:
    output = call.record.get("output") if call is not None and isinstance(call.record, dict) else None
    first = output[0] if isinstance(output, list) and output else None
    return first if isinstance(first, dict) and is_tensor(first) else None


def _is_known(item: dict[str, Any]) -> bool:
    """Whether the record has a value (statistics or a checksum), so that two equal records mean equal tensors."""
    if not is_tensor(item) or item.get("unreadable"):
        return False
    norm = item.get("Norm")
    finite = norm == norm and norm != math.inf  # a NaN may be the same object in both records
    return item.get("md5") is not None or (finite and item.get("Max") is not None)


def _is_other_mask(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether booleans stand against floats: a mask that selects, and a mask that is added."""
    return distance.dtype_name(one) in ("bool", "bool_") and distance.epsilon(other) > 0.0


def _of_tensors(target: dict[str, Any], golden: dict[str, Any]) -> Measurement:
    if target.get("places") != golden.get("places"):
        return Measurement(math.inf, Reason(Kind.VALUES, _other_places(target, golden)), math.inf)
    ours, theirs = target.get("md5"), golden.get("md5")
    known = ours is not None and theirs is not None
    if known:
        if ours == theirs:
            return EQUAL
        if distance.dtype_name(target) == distance.dtype_name(golden):
            if golden.get("Max") is None:
                return Measurement(math.inf, Reason(Kind.VALUES, Message("bytes.differ")), math.inf)
            return _of_other_bytes(target, golden)
    return distance.of_statistics(target, golden)


def _other_places(target: dict[str, Any], golden: dict[str, Any]) -> Message:
    """Sparse tensors with other indices, nested ones with other sizes."""
    ours, theirs = target.get("places") or {}, golden.get("places") or {}
    if not ours or not theirs:
        layouts = {"target": str(target.get("layout", "dense")), "golden": str(golden.get("layout", "dense"))}
        return Message("values.layouts", **layouts)
    name = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
    return Message("values.places", name=name.replace("_", " "))


def _of_other_bytes(target: dict[str, Any], golden: dict[str, Any]) -> Measurement:
    """The bytes differ. If the statistics agree, or an infinity hides the values, the bytes decide."""
    found = distance.of_statistics(target, golden)
    if found.distance is not None and found.distance >= SAME_STATISTICS:
        return found
    if found.distance == 0.0 and _is_constant(target) and _is_constant(golden):
        return EQUAL
    finite = all(math.isfinite(v) for v in map(distance.number, map(golden.get, distance.STATISTICS)) if v is not None)
    if not distance.epsilon(golden) or not finite or found.distance is None:
        return Measurement(math.inf, Reason(Kind.VALUES, Message("bytes.other_elements")), math.inf)
    return Measurement(0.5 * distance.epsilon(golden), OTHER_BYTES)


def _is_constant(item: dict[str, Any]) -> bool:
    """Whether all elements are the same finite number: then the statistics are complete. Not for complex numbers: their
    statistics are those of absolute values."""
    if distance.dtype_name(item).startswith("complex"):
        return False
    low, high = distance.number(item.get("Min")), distance.number(item.get("Max"))
    return low is not None and low == high and math.isfinite(low)


def files_of(row: Row, target: Source, golden: Source) -> Union[Files, Reason, None]:
    """The two tensor files of a row if both sides have one; the reason if a name is not the name of a file. The file of
    a sparse or nested tensor has only the stored values: at other places, the same values are a different tensor."""
    if row.absent or row.target is None or row.golden is None:
        return None
    ours, theirs = row.target.get("data_name"), row.golden.get("data_name")
    if not ours or not theirs or any(row.target.get(key) != row.golden.get(key) for key in ("shape", "places")):
        return None
    try:
        return target.tensor_path(ours), golden.tensor_path(theirs)
    except DumpError as error:
        return Reason(Kind.UNREADABLE, Message("error", text=str(error)))


Measured = tuple[Optional[TensorMetrics], Reason]


def measure_files(files: Files) -> Measured:
    """For a worker process: paths in, numbers or a reason out."""
    try:
        return compare_files(*files), NO_REASON
    except NotComparable as error:
        return None, error.reason


def from_files(measured: Measured) -> Measurement:
    """If a file cannot be read, the row is not compared and says why: statistics do not replace it."""
    metrics, reason = measured
    if metrics is None:
        return Measurement(None, reason)
    if metrics.special:
        text = Message("values.special", special=metrics.special, index=metrics.first_special)
        return Measurement(metrics.distance, Reason(Kind.VALUES, text), math.inf, metrics)
    if metrics.different:
        reason = Reason(Kind.VALUES, Message("values.elements", different=metrics.different, elements=metrics.elements))
    return Measurement(metrics.distance, reason, metrics.norm_change, metrics)
