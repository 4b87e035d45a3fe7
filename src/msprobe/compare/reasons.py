"""Why a row has its verdict: a kind for the code, and a message for the user. Stages decide by `kind` only; the text
of a reason is made when it is needed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional

from msprobe.messages import Message


class Kind(Enum):
    """The value is the word under which reasons are counted."""

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

_MESSAGES = {
    Kind.UNMATCHED: "reason.unmatched",
    Kind.KIND: "reason.kind",
    Kind.UNREADABLE: "reason.unreadable",
    Kind.MISSING_FILE: "reason.missing_file",
    Kind.SHAPE: "reason.shape",
    Kind.HIDDEN: "reason.hidden",
    Kind.UNINITIALISED: "reason.uninitialised",
    Kind.DESTINATION: "reason.destination",
    Kind.RECEIVE_BUFFER: "reason.receive_buffer",
    Kind.RECOMPUTED: "reason.recomputed",
    Kind.COVERED: "reason.covered",
    Kind.ROUNDING: "reason.rounding",
    Kind.NULL: "reason.null",
    Kind.ARGUMENT: "reason.argument",
    Kind.GRADIENT: "reason.gradient",
    Kind.DTYPE: "reason.dtype",
}
"""What is said around the detail; the detail of other kinds says it all."""


class Reason(NamedTuple):
    """True if there is something to say."""

    kind: Kind = Kind.NONE
    detail: Optional[Message] = None

    def __bool__(self) -> bool:
        return self.kind is not Kind.NONE

    def __str__(self) -> str:
        return str(self.message)

    @property
    def message(self) -> str:
        """A Message; empty without a reason."""
        around = _MESSAGES.get(self.kind)
        if around is None:
            return self.detail or ""
        return Message(around) if self.detail is None else Message(around, detail=self.detail)

    @property
    def word(self) -> str:
        """The word under which reasons are counted."""
        return self.kind.value or str(self.detail or "")


NO_REASON = Reason()
OTHER_BYTES = Reason(Kind.BYTES, Message("bytes.same_statistics"))
UNSPLIT = Reason(Kind.KIND, Message("unsplit"))
SIDES = {"target": Message("side.target"), "golden": Message("side.golden")}
"""The runs in sentences."""
