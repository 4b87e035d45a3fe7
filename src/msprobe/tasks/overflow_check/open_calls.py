"""overflow_check: one call from begin to end, with its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, Optional

from msprobe.stats.finiteness import FINITE, INFINITE, NAN


class Holder:
    """A tensor that a record may need later."""

    __slots__ = ()

    def restored(self) -> tuple[Any, bool]:
        """The tensor and True; or a substitute and False if the tensor is gone or was changed."""
        raise NotImplementedError


Hold = Callable[[Any], Optional[Holder]]
"""A Holder for a tensor; None for what is not a tensor."""


class _Copied(Holder):
    """A copy that msprobe made."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def restored(self) -> tuple[Any, bool]:
        return self.tensor, True


class OpenCall:
    """`given` is the worst state, before the call, of the tensors that it may change; `copies` of them are keyed by id.

    `name`, `parent` and `stack` are set when they are needed.
    """

    name = ""
    parent: Optional[str] = None
    stack: Optional[int] = None
    given = FINITE
    copies: Mapping[int, Any] = MappingProxyType({})
    versions: Sequence[tuple[Any, int]] = ()
    lost = False
    changing: Sequence[Any] = ()
    written: Sequence[Any] = ()
    more: Mapping[str, Any] = MappingProxyType({})
    random: Any = None
    found_before = 0  # overflows
    released = False

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def original(self) -> tuple[Any, Any]:
        """The arguments as they were before the call, as far as they were copied."""
        return _with(self.args, self.copies), _with(self.kwargs, self.copies)

    def release(self, hold: Hold) -> None:
        """The call continues after it has returned: msprobe keeps none of its arguments alive."""
        copies = self.copies

        def held_or_copied(value: Any) -> Optional[Holder]:
            return _Copied(copies[id(value)]) if id(value) in copies else hold(value)

        self.args, self.kwargs = held(self.args, held_or_copied), held(self.kwargs, held_or_copied)
        self.copies, self.changing, self.written, self.versions = {}, (), (), ()
        self.released = True

    def restore(self) -> bool:
        """Whether every argument is still there."""
        (self.args, first), (self.kwargs, second) = restored(self.args), restored(self.kwargs)
        self.released = False
        return first and second


_ATOMS = frozenset({type(None), bool, int, float, str})


def held(value: Any, hold: Hold) -> Any:
    """The value, with a Holder for every tensor."""
    if type(value) in _ATOMS:
        return value
    if type(value) in (list, tuple):
        return type(value)(held(member, hold) for member in value)
    if type(value) is dict:
        return {key: held(member, hold) for key, member in value.items()}
    holder = hold(value)
    return value if holder is None else holder


def restored(value: Any) -> tuple[Any, bool]:
    """The value that was passed to `held`, and whether all its tensors are unchanged."""
    if type(value) in (list, tuple):
        members = [restored(member) for member in value]
        return type(value)(member for member, _ in members), all(complete for _, complete in members)
    if type(value) is dict:
        named = {key: restored(member) for key, member in value.items()}
        return {key: member for key, (member, _) in named.items()}, all(complete for _, complete in named.values())
    return value.restored() if isinstance(value, Holder) else (value, True)


def _with(value: Any, copies: Mapping[int, Any]) -> Any:
    if not copies:
        return value
    if id(value) in copies:
        return copies[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_with(member, copies) for member in value)
    if type(value) is dict:
        return {key: _with(member, copies) for key, member in value.items()}
    return value


def numbers_state(value: Any, depth: int = 4) -> int:
    """Whether a number among the arguments is itself NaN or infinite."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else INFINITE if math.isinf(value) else FINITE
    if depth and isinstance(value, (list, tuple)):
        return max((numbers_state(member, depth - 1) for member in value), default=FINITE)
    if depth and isinstance(value, dict):
        return max((numbers_state(member, depth - 1) for member in value.values()), default=FINITE)
    return FINITE
