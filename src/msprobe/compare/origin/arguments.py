"""Plain arguments of a call (an eps, a reduction, a flag) that explain why its result differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.compare.calls import Call, Match
from msprobe.compare.reasons import SIDES, Kind
from msprobe.compare.rows import Item, Row, is_tensor, slots
from msprobe.messages import Message

_ARGUMENTS = {
    "linear": "input weight bias",
    "layer_norm": "input normalized_shape weight bias eps",
    "rms_norm": "input normalized_shape weight eps",
    "group_norm": "input num_groups weight bias eps",
    "batch_norm": "input running_mean running_var weight bias training momentum eps",
    "dropout": "input p training inplace",
    "softmax": "input dim",
    "log_softmax": "input dim",
    "cross_entropy": "input target weight size_average ignore_index reduce reduction label_smoothing",
    "nll_loss": "input target weight size_average ignore_index reduce reduction",
    "mse_loss": "input target",
    "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal scale enable_gqa",
    "addmm": "input mat1 mat2",
    "conv1d": "input weight bias stride padding dilation groups",
    "conv2d": "input weight bias stride padding dilation groups",
    "masked_fill": "self mask value",
    "pad": "input pad mode value",
    "cat": "tensors dim",
    "stack": "tensors dim",
    "where": "condition input other",
    "matmul": "input other",
    "__matmul__": "self other",
    "__add__": "self other",
    "__sub__": "self other",
    "__mul__": "self other",
    "__truediv__": "self other",
    "bmm": "input mat2",
    "topk": "input k dim largest sorted",
    "lerp_": "self end weight",
    "addcmul_": "self tensor1 tensor2",
    "addcdiv_": "self tensor1 tensor2",
}
"""Names of positional arguments, by the last word of an API."""


def slot_text(call: Call, slot: str) -> str:
    """`eps (input.4)` for an argument whose name is known, else the slot."""
    parts = slot.split(".")
    if call.kind != "api" or call.direction != "forward" or parts[0] != "input" or len(parts) < 2:
        return slot
    names = _ARGUMENTS.get(call.key.rpartition(".")[2], "").split()
    if not parts[1].isdigit() or int(parts[1]) >= len(names):
        return slot
    listed = f"[{parts[2]}]" if len(parts) > 2 else ""
    return f"{names[int(parts[1])]}{listed} ({slot})"


def other_arguments(match: Match, inputs: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Arguments with a different value among the differing `inputs`. If there are none, no input tensor differs and
    both runs call the same API: the arguments that only one run passes (`scale=0.5`). Arguments that turn something off
    (`dropout_p=0.0`) come last: the other run may do the same without them."""
    both = [row for row in inputs if not is_tensor(row.golden) and row.golden is not None]
    both += [row for row in rows if row.is_input and _is_tensor_once(row) and not inputs]
    if both or any(is_tensor(row.target) or is_tensor(row.golden) for row in inputs):
        return both
    target, golden = match.target, match.golden
    if target is None or golden is None or target.key != golden.key or target.kind != "api":
        return []
    if any(row.is_input and row.why.kind is Kind.SHAPE for row in rows):
        return []
    alone = [row for row in rows if row.is_input and _is_given_once(row)]
    same = _given_both_ways(match.call, alone) if len(alone) > 1 else set()
    other = [row for row in alone if argument_name(match.call, row.slot) not in same]
    return sorted(other, key=lambda row: not _value(row))


def plain_arguments(match: Match) -> tuple[Message, ...]:
    """The plain arguments of two different calls in the same place, side by side, or of a call that only one run makes;
    empty for the same API."""
    target, golden = match.target, match.golden
    if match.call.direction != "forward" or (target is not None and golden is not None and target.key == golden.key):
        return ()
    told = []
    for call, side in zip((target, golden), SIDES.values()):
        known = plain_values(call) if call is not None else []
        if call is not None and known:
            told.append(Message("evidence.arguments", side=side, arguments=known, call=call.name))
    return tuple(told)


def plain_values(call: Call) -> list[str]:
    """`eps=1e-05` for each plain argument of a call that says something, at most six."""
    plain = [
        (slot, item)
        for slot, item in slots(call)
        if slot.startswith("input") and "._" not in slot and not is_tensor(item)
    ]
    given = [(slot, (item or {}).get("value")) for slot, item in plain]
    return [f"{argument_name(call, slot)}={value!r}" for slot, value in given if not _is_silent(value)][:6]


def _is_silent(value: Any) -> bool:
    """Whether an argument turns something off, or is a whole slice."""
    return value is None or value is False or value == [None, None, None]


def argument_name(call: Call, slot: str) -> str:
    """`stride` for `input.3.0` as well as for `input.stride`, where the API is known."""
    return slot_text(call, slot).partition(" (")[0].partition("[")[0].removeprefix("input.")


def _given_both_ways(call: Call, rows: Sequence[Row]) -> set[str]:
    """The arguments that one run gives by name and the other by place, with the same value."""
    sides: dict[str, tuple[list[Any], list[Any]]] = {}
    for row in rows:
        ours, theirs = sides.setdefault(argument_name(call, row.slot), ([], []))
        (theirs if row.target is None else ours).append(_value(row))
    return {name for name, (a, b) in sides.items() if a and b and len({*map(str, a), *map(str, b)}) == 1}


def _value(row: Row) -> Any:
    return (row.target or row.golden or {}).get("value")


def _is_tensor_once(row: Row) -> bool:
    """Whether one run passes a tensor and the other a number."""
    sides = (row.target, row.golden)
    numbers = [item for item in sides if item is not None and isinstance(item.get("value"), (int, float))]
    return len(numbers) == 1 and any(is_tensor(item) for item in sides)


def _is_given_once(row: Row) -> bool:
    sides = (row.target, row.golden)
    if any(is_tensor(item) for item in sides):
        return False
    values = [None if item is None else item.get("value") for item in sides]
    return (values[0] is None) != (values[1] is None)


def one_sided(name: str, row: Row) -> Message:
    """An argument that only one run passes, or passes as a tensor."""
    ours, theirs = ((item or {}).get("value") for item in (row.target, row.golden))
    if is_tensor(row.golden):
        return Message("argument.tensor_in_golden", name=name, value=repr(ours), range=_range(row.golden))
    if is_tensor(row.target):
        return Message("argument.tensor", name=name, value=repr(theirs), range=_range(row.target))
    if theirs is None:
        return Message("argument.only_target", name=name, value=repr(ours))
    return Message("argument.only_golden", name=name, value=repr(theirs))


def _range(item: Item) -> str:
    least, most = ((item or {}).get(key) for key in ("Min", "Max"))
    return str(most) if least == most else Message("range", least=str(least), most=str(most))
