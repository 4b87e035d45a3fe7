"""How far two recorded items are apart, from what dump.json says of them.

One number a row, relative to the tensor's own size: 1e-7 is rounding in float32, 1 is a different tensor. Maximum and
minimum are measured against the larger of themselves and the root mean square, the mean against the root mean square,
so that cancellation (a mean that is zero but for rounding) is not mistaken for an error. Masks are the exception that
needs care: a tensor with -1e9 in it says nothing about its other elements, so a lone huge extreme is not a scale.
"""

from __future__ import annotations

import math
from typing import Any, Optional

SENTINEL = 1e4
"""An extreme this much larger than the other one is a mask, not data."""

EPSILON = {
    "float64": 2.0**-52,
    "double": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "float": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "half": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "hifloat8": 2.0**-2,
}


def dtype_name(item: dict[str, Any]) -> str:
    """`torch.float32`, `Float32` and `float32` are one type."""
    name = str(item.get("dtype", "")).rpartition(".")[2].lower()
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(name, name)


def epsilon(item: dict[str, Any]) -> float:
    """The spacing of the type at 1; 0 for integers and booleans, which are equal or are not."""
    return EPSILON.get(dtype_name(item), 0.0)


def count(item: dict[str, Any]) -> int:
    total = 1
    for length in item["shape"]:
        total *= length
    return total


def number(value: object) -> Optional[float]:
    """A recorded statistic as a float: numbers, booleans, and the quoted forms of NaN and the infinities."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def scale(item: dict[str, Any]) -> float:
    """The root mean square of a tensor, from its norm; 0 when it cannot be known or a mask hides it."""
    norm, elements = number(item.get("Norm")), count(item)
    if norm is None or not math.isfinite(norm) or elements == 0:
        return 0.0
    low, high = number(item.get("Min")), number(item.get("Max"))
    if low is not None and high is not None and is_masked(low, high):
        return min(abs(low), abs(high))
    return norm / math.sqrt(elements)


def is_masked(low: float, high: float) -> bool:
    small, large = sorted((abs(low), abs(high)))
    return large >= SENTINEL and small * SENTINEL <= large


ValueKey = tuple[object, ...]


def value_key(item: object) -> Optional[ValueKey]:
    """Equal keys: in all likelihood the same numbers, whatever the shape they are viewed in."""
    if not isinstance(item, dict) or "dtype" not in item or "shape" not in item:
        return None
    statistics = [number(item.get(key)) for key in ("Max", "Min", "Mean", "Norm")]
    if None in statistics:
        return (item["md5"],) if item.get("md5") else None
    return (count(item), *(f"{value:.5e}" for value in statistics))


def result_key(item: object) -> Optional[ValueKey]:
    """Like `value_key`, but equal for results that differ by rounding too, in all likelihood."""
    if not isinstance(item, dict) or "dtype" not in item or "shape" not in item:
        return None
    statistics = [number(item.get(key)) for key in ("Max", "Min", "Norm")]
    return None if None in statistics else (count(item), *(f"{value:.3e}" for value in statistics))


def of_statistics(target: dict[str, Any], golden: dict[str, Any]) -> tuple[Optional[float], str]:
    """(distance, reason): None where the statistics cannot tell."""
    if (
        target.get("Norm") == golden.get("Norm")
        and target.get("Max") == golden.get("Max")
        and target.get("Min") == golden.get("Min")
        and target.get("Mean") == golden.get("Mean")
        and golden.get("Max") is not None
    ):
        return 0.0, ""
    if 0 in golden["shape"]:
        return 0.0, ""
    values = [(number(target.get(key)), number(golden.get(key))) for key in ("Max", "Min", "Mean", "Norm")]
    known = [(t, g) for t, g in values if t is not None and g is not None]
    if not known:
        return None, "no statistics were recorded"
    nans = [(math.isnan(t), math.isnan(g)) for t, g in known]
    if any(t and not g for t, g in nans):
        return math.inf, "NaN in the target only"
    if any(g and not t for t, g in nans):
        return math.inf, "NaN in the golden run only"
    if all(t and g for t, g in nans):
        return None, "NaN on both sides hides the values"
    return _largest(values, golden)


def _largest(
    values: list[tuple[Optional[float], Optional[float]]], golden: dict[str, Any]
) -> tuple[Optional[float], str]:
    worst, reason = 0.0, ""
    size = scale(golden)
    low, high = values[1][1], values[0][1]
    masked = low is not None and high is not None and is_masked(low, high)
    for name, (t, g) in zip(("maximum", "minimum", "mean", "norm"), values):
        if t is None or g is None or t == g or (math.isnan(t) and math.isnan(g)):
            continue
        if math.isinf(t) or math.isinf(g):
            side = "target" if math.isinf(t) else "golden run"
            return math.inf, f"infinite {name} in the {side} only"
        own = abs(g) if name == "norm" or masked else max(abs(g), size)
        distance = abs(t - g) / own if own else math.inf
        if distance > worst:
            worst, reason = distance, name
    return worst, f"{reason} differs" if reason else ""


def _is_lowest(ours: float, theirs: float) -> bool:
    """Both are the end of some dtype's range: what masks are filled with, whatever the dtype."""
    return ours * theirs > 0 and all(
        any(math.isclose(abs(v), end, rel_tol=1e-6) for end in _ENDS) for v in (ours, theirs)
    )


_ENDS = (65504.0, 3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308, 448.0, 57344.0)


def of_values(target: dict[str, Any], golden: dict[str, Any]) -> tuple[Optional[float], str]:
    """Plain arguments: numbers by value, everything else by its text."""
    if "value" not in target and "value" not in golden:
        if target.get("type") == golden.get("type"):
            return 0.0, ""
        return None, f"the types differ: {target.get('type')} and {golden.get('type')}"
    ours, theirs = target.get("value"), golden.get("value")
    if ours == theirs or str(ours) == str(theirs):
        return 0.0, ""
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        if (ours != ours and theirs != theirs) or _is_lowest(ours, theirs):
            return 0.0, ""
        distance = abs(ours - theirs) / max(abs(ours), abs(theirs), 1e-300)
        return (distance if distance == distance else math.inf), f"the argument is {ours}, not {theirs}"
    return math.inf, f"the argument is {ours!r}, not {theirs!r}"
