"""The calls of a dump for alignment: names, places and shapes. Alignment never reads tensors, so tests of it need only
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from msprobe.dump.names import (
    BACKWARD,
    DEBUG,
    FORWARD,
    PARAMETERS_GRAD,
    forward_of,
    module_class,
    module_path,
    parse_name,
)
from msprobe.dump.record_keys import IS_RECOMPUTE

__all__ = [
    "BACKWARD",
    "DEBUG",
    "FORWARD",
    "GRADS",
    "Call",
    "Match",
    "arguments",
    "calls_of",
    "fingerprint",
    "forward_name",
    "module_class",
    "module_path",
    "parse_name",
    "shapes",
]

GRADS = PARAMETERS_GRAD


class Call(NamedTuple):
    """One record of a dump, by name.

    `key` is the name without number and direction (`Functional.relu`, `Module.layers.0.fc.Linear`); `parent` is the
    module call it ran in; `order` its place in the dump, gradients of parameters last; `record` what was recorded.
    """

    name: str
    kind: str
    key: str
    number: int
    direction: str
    parent: Optional[str]
    order: int
    recompute: bool
    record: Any


class Match(NamedTuple):
    """A call of the target with its counterpart in the golden run. A call without counterpart has None on the other
    side.

    `how` is exact, recount, mapping, sequence, renamed, position, moved, fused, fuzzy or unmatched. If one fused call
    matches several calls, `target` or `golden` is the last of them and `before` has the others; `splits_golden`: they
    are calls of the golden run.
    """

    target: Optional[Call]
    golden: Optional[Call]
    how: str
    confidence: float
    before: tuple[Call, ...] = ()
    splits_golden: bool = False

    @property
    def call(self) -> Call:
        """The call that gives the match its name: that of the target, if it has one."""
        call = self.target or self.golden
        assert call is not None
        return call


def forward_name(call: Call) -> str:
    """The name of the forward that a backward belongs to; for other calls, their own name."""
    return forward_of(call.name) if call.direction == BACKWARD else call.name


def shapes(value: Any) -> str:
    """The shapes in a record's part, as one text."""
    if isinstance(value, dict):
        shape = value.get("shape")
        if isinstance(shape, list):
            return str(shape)
        return "".join([shapes(item) for item in value.values() if isinstance(item, (dict, list))])
    if isinstance(value, list):
        return "".join([shapes(item) for item in value])
    return ""


def arguments(value: Any) -> str:
    """Shapes and plain values of a part of a record: they distinguish two calls of one API."""
    if isinstance(value, dict):
        shape = value.get("shape")
        if isinstance(shape, list):
            return str(shape)
        if "value" in value:
            return f"={value['value']}"
        return "".join([key + arguments(item) for key, item in value.items() if isinstance(item, (dict, list))])
    if isinstance(value, list):
        return "".join([arguments(item) for item in value])
    return "-" if value is None else ""


def fingerprint(value: Any) -> str:
    """Shapes, statistics and checksums of a part of a record. Equal texts almost certainly mean equal tensors."""
    if isinstance(value, dict):
        if isinstance(value.get("shape"), list):
            return (
                f"{value['shape']}{value.get('Max')}{value.get('Min')}{value.get('Mean')}{value.get('Norm')}"
                f"{value.get('md5', '')}"
            )
        return "".join([fingerprint(item) for item in value.values() if isinstance(item, (dict, list))])
    if isinstance(value, list):
        return "".join([fingerprint(item) for item in value])
    return ""


def calls_of(data: Mapping[str, Any], construct: Mapping[str, Optional[str]]) -> list[Call]:
    """The calls of one rank's dump, in the order of its `data`.

    The gradients of parameters come after the last backward, wherever the file has them: one version of
    mindstudio-probe writes a placeholder next to the forward, and fills it during the backward.
    """
    parsed = [(name, record, *parse_name(name)) for name, record in data.items()]
    grads = [p for p in parsed if p[2] == "grads"]
    if grads:
        rest = [p for p in parsed if p[2] != "grads"]
        last = max((place for place, p in enumerate(rest) if p[5] == BACKWARD), default=len(rest) - 1)
        parsed = [*rest[: last + 1], *grads, *rest[last + 1 :]]
    parent_of = construct.get
    return [
        Call(
            name,
            kind,
            key,
            number,
            direction,
            parent_of(name),
            order,
            isinstance(record, dict) and record.get(IS_RECOMPUTE) is True,
            record,
        )
        for order, (name, record, kind, key, number, direction) in enumerate(parsed)
    ]
