"""How far apart two recorded items are, from their statistics in dump.json.

One number for each row, relative to the size of the tensor: 1e-7 is rounding in float32, 1 is a different tensor.
Maximum and minimum are measured against the larger of themselves and the root mean square, the mean against the root
mean square, so that cancellation (a mean that is zero except for rounding) is not mistaken for an error. Every measure
is symmetric: it does not depend on which run is the golden one. Masks are an exception: the statistics of a tensor with
-1e9 in it say nothing about its other elements, so a single huge extreme does not count as its size.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Optional

from msprobe.compare.reasons import NO_REASON, SIDES, Kind, Reason
from msprobe.compare.rows import EQUAL, Measurement
from msprobe.messages import Message
from msprobe.stats import dtypes

STATISTICS = ("Max", "Min", "Mean", "Norm")
SENTINEL = 1e4
"""An extreme this much larger than the other one is a mask, not data."""
ONE_VALUE = 0.9
"""The value of a mask has at least this share of the sum of squares."""

_ALIASES = {
    **{row.mindspore.lower(): row.name for row in dtypes.TABLE if row.mindspore},
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
EPSILON = {
    **{row.name: 2.0**-row.mantissa for row in dtypes.TABLE if row.kind in (dtypes.FLOAT, dtypes.COMPLEX)},
    "double": 2.0**-52,
    "float": 2.0**-23,
    "half": 2.0**-10,
    "hifloat8": 2.0**-2,
    "float4_e2m1fn_x2": 2.0**-1,
}


def dtype_name(item: dict[str, Any]) -> str:
    """`torch.float32`, `Float32` and `float32` are one type."""
    return _plain_name(str(item.get("dtype", "")))


@functools.lru_cache(maxsize=256)
def _plain_name(dtype: str) -> str:
    name = dtype.rpartition(".")[2].lower()
    return _ALIASES.get(name, name)


@functools.lru_cache(maxsize=256)
def _spacing(dtype: str) -> float:
    return EPSILON.get(_plain_name(dtype), 0.0)


def epsilon(item: dict[str, Any]) -> float:
    """The spacing of the dtype at 1; 0 for integers and booleans, which must be equal."""
    return _spacing(str(item.get("dtype", "")))


def count(item: dict[str, Any]) -> int:
    """The number of elements; 0 if the recorded shape is damaged."""
    shape = item.get("shape")
    if not isinstance(shape, (list, tuple)):
        return 0
    try:
        total = math.prod(shape)
    except TypeError:
        return 0
    return total if isinstance(total, int) and total > 0 else 0


def number(value: object) -> Optional[float]:
    """A recorded statistic as a float: numbers, booleans, and the quoted forms of NaN and the infinities."""
    if isinstance(value, float):
        return value
    if isinstance(value, (int, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def scale(item: dict[str, Any]) -> float:
    """The root mean square of a tensor, from its norm; 0 if it is not known or a mask hides it."""
    norm, elements = item.get("Norm"), count(item)
    high, low = item.get("Max"), item.get("Min")
    if (
        high.__class__ is low.__class__ is norm.__class__ is float  # nearly all are, and have no mask
        and -SENTINEL < high < SENTINEL
        and -SENTINEL < low < SENTINEL
        and -math.inf < norm < math.inf
    ):
        return norm / math.sqrt(elements) if elements else 0.0
    norm = number(norm)
    if norm is None or elements == 0 or not math.isfinite(norm):
        return 0.0
    if is_masked(item):
        return min(abs(number(item.get(key)) or 0.0) for key in ("Max", "Min"))
    return norm / math.sqrt(elements)


def is_masked(item: dict[str, Any]) -> bool:
    """Whether one huge repeated value hides the others. Data with a wide range (squares of gradients) is not a mask:
    the sum of its squares is far less than that of one value with this sum."""
    high, low = number(item.get("Max")), number(item.get("Min"))
    if high is None or low is None:
        return False
    small, large = abs(low), abs(high)
    if large < small:
        small, large = large, small
    if large < SENTINEL or small * SENTINEL > large:
        return False
    mean, norm = number(item.get("Mean")), number(item.get("Norm"))
    if mean is None or norm is None or not math.isfinite(mean):
        return True
    return norm * norm >= ONE_VALUE * large * abs(mean) * count(item)


ValueKey = tuple[object, ...]


def value_key(item: object) -> Optional[ValueKey]:
    """Equal keys almost certainly mean the same numbers, in any shape."""
    if not isinstance(item, dict) or "dtype" not in item or "shape" not in item:
        return None
    statistics = [number(item.get(key)) for key in ("Max", "Min", "Mean", "Norm")]
    if None in statistics:
        return (item["md5"],) if item.get("md5") else None
    return (count(item), *(f"{value:.5e}" for value in statistics))


def direction_key(item: object) -> Optional[ValueKey]:
    """Almost certainly equal only for tensors that differ by a factor. A single number has no direction."""
    if not isinstance(item, dict) or "dtype" not in item or "shape" not in item:
        return None
    low, high, mean, norm = (number(item.get(key)) for key in ("Min", "Max", "Mean", "Norm"))
    if low is None or high is None or mean is None or not norm or not math.isfinite(norm):
        return None
    if count(item) == 1:
        return value_key(item)
    return (count(item), *(f"{value / norm:.3e}" for value in (low, high)))


def is_repetition(one: object, other: object) -> bool:
    """Whether one tensor almost certainly has the numbers of the other, once or repeated (a view, an expansion)."""
    if not isinstance(one, dict) or not isinstance(other, dict) or "shape" not in one or "shape" not in other:
        return False
    if value_key(one) == value_key(other) is not None:
        return True
    for key in ("Max", "Min", "Mean"):
        a, b = number(one.get(key)), number(other.get(key))
        if a is None or b is None or not math.isclose(a, b, rel_tol=1e-6):
            return False
    ratio = count(one) / max(count(other), 1)
    return ratio > 0 and (ratio == int(ratio) or 1 / ratio == int(1 / ratio))


def result_key(item: object) -> Optional[ValueKey]:
    """Like `value_key`, but almost always equal also for results that differ by rounding."""
    if not isinstance(item, dict) or "dtype" not in item or "shape" not in item:
        return None
    statistics = [number(item.get(key)) for key in ("Max", "Min", "Norm")]
    return None if None in statistics else (count(item), *(f"{value:.3e}" for value in statistics))


def order_key(item: object) -> Optional[float]:
    """Almost always equal for the same elements in the same order, but for rounding; None if it was not recorded."""
    if not isinstance(item, dict):
        return None
    order, norm = number(item.get("Order")), number(item.get("Norm"))
    return round(order / norm, 2) + 0.0 if order is not None and norm and math.isfinite(order / norm) else None


def of_statistics(target: dict[str, Any], golden: dict[str, Any]) -> Measurement:
    """The distance by statistics; None if they do not show it."""
    if (
        target.get("Norm") == golden.get("Norm")
        and target.get("Max") == golden.get("Max")
        and target.get("Min") == golden.get("Min")
        and target.get("Mean") == golden.get("Mean")
        and golden.get("Max") is not None
        and golden.get("Norm") != math.inf
    ):
        return EQUAL
    if 0 in golden["shape"]:
        return EQUAL
    found = _of_usual(target, golden)
    if found is not None:
        return found
    values = [(number(target.get(key)), number(golden.get(key))) for key in STATISTICS]
    known = [(t, g) for t, g in values if t is not None and g is not None]
    damaged = damaged_statistic(target, golden) if len(known) < len(values) else None
    if damaged:
        return Measurement(None, Reason(Kind.UNREADABLE, damaged))
    if not known:
        return Measurement(None, Reason(Kind.KIND, Message("kind.no_statistics")))
    nans = [(t != t, g != g) for t, g in known]
    if any(t and not g for t, g in nans):
        return Measurement(math.inf, Reason(Kind.VALUES, Message("values.nan", side=SIDES["target"])), math.inf)
    if any(g and not t for t, g in nans):
        return Measurement(math.inf, Reason(Kind.VALUES, Message("values.nan", side=SIDES["golden"])), math.inf)
    if all(t and g for t, g in nans):
        return Measurement(None, Reason(Kind.HIDDEN, Message("hidden.nan")))
    return _largest(values, target, golden)


_NAMES = ("maximum", "minimum", "mean", "norm")
_DIFFERS = tuple(
    Reason(Kind.VALUES, Message(id)) for id in ("values.maximum", "values.minimum", "values.mean", "values.norm")
)
_INFINITE = (
    "values.infinite.maximum",
    "values.infinite.minimum",
    "values.infinite.mean",
    "values.infinite.norm",
)


def _of_usual(target: dict[str, Any], golden: dict[str, Any]) -> Optional[Measurement]:
    """A faster `_largest` for the usual pair of tensors: one shape, floats, all finite, without a mask; None for the
    others. If two runs differ by rounding, a comparison spends most of its time here."""
    ours: list[Any] = [target.get("Max"), target.get("Min"), target.get("Mean"), target.get("Norm")]
    theirs: list[Any] = [golden.get("Max"), golden.get("Min"), golden.get("Mean"), golden.get("Norm")]
    for high, low, mean, norm in (ours, theirs):
        if not high.__class__ is low.__class__ is mean.__class__ is norm.__class__ is float:
            return None
        if not (-SENTINEL < high < SENTINEL and -SENTINEL < low < SENTINEL):
            return None
        if not (-math.inf < mean < math.inf and -math.inf < norm < math.inf):
            return None
    elements = count(golden)
    if not elements or target.get("shape") != golden["shape"]:
        return None
    size = max(ours[3], theirs[3]) / math.sqrt(elements)
    worst, average, place = 0.0, 0.0, 0
    for index in (0, 1, 2, 3):
        t, g = ours[index], theirs[index]
        if t != g:
            own = max(abs(t), abs(g), size) if index < 3 else max(abs(t), abs(g))
            away = abs(t - g) / own
            if index > 1 and away > average:
                average = away
            if away > worst:
                worst, place = away, index
    return Measurement(worst, _DIFFERS[place], average) if worst else None


def damaged_statistic(*items: dict[str, Any]) -> Optional[Message]:
    """Says which recorded statistic is not a number. A statistic that was not recorded is not damage."""
    for item in items:
        for key in STATISTICS:
            value = item.get(key)
            if value is not None and number(value) is None:
                bits = value.bit_length() if isinstance(value, int) else 0
                text = Message("damaged.bits", bits=bits) if bits else repr(value)[:40]
                return Message("damaged.statistic", name=key, value=text)
    return None


def _largest(
    values: list[tuple[Optional[float], Optional[float]]], target: dict[str, Any], golden: dict[str, Any]
) -> Measurement:
    worst, average, worst_place = 0.0, 0.0, 0
    size = max(scale(target), scale(golden))
    masked = is_masked(target) or is_masked(golden)
    for place, (name, (t, g)) in enumerate(zip(_NAMES, values)):
        if t is None or g is None or t == g or (t != t and g != g):
            continue
        if math.isinf(t) or math.isinf(g):
            why = Message(_INFINITE[place], side=SIDES["target" if math.isinf(t) else "golden"])
            return Measurement(math.inf, Reason(Kind.VALUES, why), math.inf)
        own = max(abs(t), abs(g))
        if name != "norm" and not masked:
            own = max(own, size)
        away = abs(t - g) / own
        if name in ("mean", "norm"):
            average = max(average, away)
        if away > worst:
            worst, worst_place = away, place
    if not worst:
        return _same_as_floats(values, target, golden)
    return Measurement(worst, _DIFFERS[worst_place], average)


def _same_as_floats(
    values: list[tuple[Optional[float], Optional[float]]], target: dict[str, Any], golden: dict[str, Any]
) -> Measurement:
    """Integers beyond 2**53 may differ although their floats agree; an infinite norm may hide other elements."""
    for key, reason in zip(("Max", "Min"), _DIFFERS):
        t, g = target.get(key), golden.get(key)
        if isinstance(t, int) and isinstance(g, int) and t != g:
            away = abs(t - g) / max(abs(t), abs(g))
            return Measurement(away, reason, away)
    if values[3][1] == math.inf and count(golden) > 1 and not (_is_filled(target) and _is_filled(golden)):
        return Measurement(None, Reason(Kind.HIDDEN, Message("hidden.infinity")))
    return EQUAL


def _is_filled(item: dict[str, Any]) -> bool:
    """All elements are the same infinity."""
    return bool(item.get("Max") == item.get("Min"))


def _is_lowest(ours: float, theirs: float) -> bool:
    """Whether both are the end of the range of some dtype: masks are filled with it."""
    return ours * theirs > 0 and all(
        any(math.isclose(abs(v), end, rel_tol=1e-6) for end in _ENDS) for v in (ours, theirs)
    )


_ENDS = (65504.0, 3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308, 448.0, 57344.0)


def of_values(target: dict[str, Any], golden: dict[str, Any]) -> tuple[Optional[float], Reason]:
    """Plain arguments: numbers by value, everything else by its text."""
    if "value" not in target and "value" not in golden:
        if target.get("type") == golden.get("type"):
            return 0.0, NO_REASON
        types = {"target": str(target.get("type")), "golden": str(golden.get("type"))}
        return None, Reason(Kind.KIND, Message("kind.types", **types))
    ours, theirs = target.get("value"), golden.get("value")
    if ours == theirs or str(ours) == str(theirs):
        return 0.0, NO_REASON
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        if (ours != ours and theirs != theirs) or _is_lowest(ours, theirs):
            return 0.0, NO_REASON
        distance = abs(ours - theirs) / max(abs(ours), abs(theirs), 1e-300)
        why = Message("not", target=str(ours), golden=str(theirs))
        return (distance if distance == distance else math.inf), Reason(Kind.ARGUMENT, why)
    return math.inf, Reason(Kind.ARGUMENT, Message("not", target=repr(ours), golden=repr(theirs)))
