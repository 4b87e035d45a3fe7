"""tokens.json: which token each row of a step's tensors belongs to.

An inference engine mixes rows of many sequences in one forward, and a trainer pads or packs them. The coordinates of a
row are its sequence and its position; they make rows of both comparable. docs/format.md describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.json_files import read_json

FORMAT = 1
ROLLOUT, TRAINER = "rollout", "trainer"
PADDING = -1


@dataclass
class SequenceTokens:
    """A sequence: its name in the engine, the token ids known so far, and how its tokens are sampled."""

    name: str
    tokens: list[int]
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class Forward:
    """The rows of one forward of the model, flattened. `sequence` is an index, or -1 for padding.

    `position` is the place of the token in its sequence; `given` is the position that the model received, if it
    received one. `again` lists rows that an earlier forward computed already (preemption).
    """

    shape: list[int]
    sequence: list[int]
    position: list[int]
    token: list[int]
    given: Optional[list[int]] = None
    again: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = len(self.sequence)
        if any(len(one) != rows for one in (self.position, self.token, self.given) if one is not None):
            raise ValueError("the columns of a forward do not have the same length")


@dataclass
class TokenLogprob:
    """The log-probability that one side gave to the token at `position` of a sequence. `kind`: prompt or sampled."""

    sequence: int
    position: int
    token: int
    logprob: float
    kind: str = "sampled"


@dataclass
class Tokens:
    """All of tokens.json. `absent` lists [sequence, first, last]: positions that no forward computed (prefix cache)."""

    side: str
    sequences: list[SequenceTokens] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    absent: list[list[int]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))
        layout.write_file(directory / layout.TOKENS, [text.encode()])


def read_tokens(directory: Path) -> Optional[Tokens]:
    """The tokens of a rank directory; None without tokens.json. Raises DumpError for a damaged file."""
    file = directory / layout.TOKENS
    try:
        if not file.exists():
            return None
        value = read_json(file, directory)
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise DumpError(f"{file} is not JSON: {error}.") from None
    try:
        return _parse(value)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise DumpError(f"{file} is damaged ({error}). Collect this step again.") from None


def _parse(value: Any) -> Tokens:
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']!r}, expected {FORMAT}")
    if value["side"] not in (ROLLOUT, TRAINER):
        raise ValueError(f"side {value['side']!r}")
    sequences = [
        SequenceTokens(str(one["name"]), _whole(one["tokens"]), dict(one["sampling"])) for one in value["sequences"]
    ]
    forwards = [_forward(one, len(sequences)) for one in value["forwards"]]
    logprobs = [
        TokenLogprob(int(o["sequence"]), int(o["position"]), int(o["token"]), float(o["logprob"]), str(o["kind"]))
        for o in value["logprobs"]
    ]
    if any(not 0 <= one.sequence < len(sequences) for one in logprobs):
        raise ValueError("a log-probability of an unknown sequence")
    absent = [_whole(one) for one in value["absent"]]
    if any(len(one) != 3 or not 0 <= one[0] < len(sequences) for one in absent):
        raise ValueError("absent rows of an unknown sequence")
    return Tokens(value["side"], sequences, forwards, absent, logprobs, dict(value["engine"]))


def _forward(one: Any, sequences: int) -> Forward:
    given = one["given"]
    made = Forward(
        _whole(one["shape"]),
        _whole(one["sequence"]),
        _whole(one["position"]),
        _whole(one["token"]),
        None if given is None else _whole(given),
        _whole(one["again"]),
    )
    if any(not PADDING <= index < sequences for index in made.sequence):
        raise ValueError("a row of an unknown sequence")
    return made


def _whole(values: Sequence[Any]) -> list[int]:
    if not isinstance(values, list) or any(type(one) is not int for one in values):
        raise ValueError("a list with values that are not whole numbers")
    return values
