"""Why a row has its verdict: a kind for the code, and details for the user. Stages decide by `kind` only; the text is
made when it is needed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The value is the first word of the text; kinds with an empty value are explained by the detail alone."""

    NONE = ""
    UNMATCHED = "unmatched"
    KIND = "kind"
    UNREADABLE = "unreadable"
    MISSING_FILE = "missing"
    SHAPE = "shape"
    HIDDEN = "hidden"
    UNINITIALISED = "uninitialised memory"
    DESTINATION = "destination"
    RECEIVE_BUFFER = "receive buffer of a collective"
    RECOMPUTED = "recomputed"
    COVERED = "covered"
    ROUNDING = "rounding"
    NULL = "null"
    ARGUMENT = "the argument is"
    VALUES = "values"
    BYTES = "bytes"
    GRADIENT = "requires_grad is"
    DTYPE = "the dtype is"


BENIGN = frozenset(
    [
        Kind.UNINITIALISED,
        Kind.DESTINATION,
        Kind.RECEIVE_BUFFER,
        Kind.RECOMPUTED,
        Kind.COVERED,
        Kind.ROUNDING,
    ]
)
"""Reasons for not comparing a row that still allow the verdict "same"."""

_COLON = frozenset(
    [
        Kind.UNMATCHED,
        Kind.KIND,
        Kind.UNREADABLE,
        Kind.MISSING_FILE,
        Kind.SHAPE,
        Kind.HIDDEN,
        Kind.DESTINATION,
        Kind.RECOMPUTED,
        Kind.COVERED,
        Kind.ROUNDING,
    ]
)
_SPACE = frozenset([Kind.NULL, Kind.ARGUMENT, Kind.GRADIENT, Kind.DTYPE])


class Reason(NamedTuple):
    """True if there is something to say."""

    kind: Kind = Kind.NONE
    detail: str = ""

    def __bool__(self) -> bool:
        return self.kind is not Kind.NONE

    def __str__(self) -> str:
        if self.kind in _COLON:
            return f"{self.kind.value}: {self.detail}"
        if self.kind in _SPACE:
            return f"{self.kind.value} {self.detail}"
        return self.detail or self.kind.value

    @property
    def word(self) -> str:
        """The word under which reasons are counted."""
        return self.kind.value or self.detail


NO_REASON = Reason()
OTHER_BYTES = Reason(
    Kind.BYTES,
    "the checksums differ and the statistics agree: a different order of the elements, or other signs of zero",
)

UNSPLIT = Reason(
    Kind.KIND,
    "FullyShardedDataParallel keeps several parameters in this tensor, and their statistics are only known together; "
    "collect with task tensor, or train with use_orig_params=True",
)
