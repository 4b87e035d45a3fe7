"""One side of a comparison by token: all steps and ranks of a dump as tables with one row per token.

The rows of every tensor are in the same order: by step, then by forward, then as in the forward. Tensor-parallel ranks
have the same rows and different columns; other ranks (data or sequence parallel) have different rows.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.items import items
from msprobe.dump.reader import Dump, RankDump
from msprobe.dump.tokens import PADDING, Forward, SequenceTokens, TokenLogprob, Tokens

Array = np.ndarray[Any, Any]
_CALL = re.compile(r"Module\.(?P<path>.+)\.(?P<kind>[^.]+)\.forward\.(?P<call>\d+)\Z")
_MAX_VALUES = 1 << 31


@dataclass(frozen=True)
class Slot:
    """One tensor of a module: `self_attn.q_proj`, `output.0`."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path} {self.name}"


@dataclass
class Rows:
    """The coordinates of all rows."""

    sequence: Array
    position: Array
    token: Array
    given: Array  # -1: not known
    step: Array
    again: Array

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True)
class Part:
    """One forward: the rank directories that have its rows (several: tensor parallel), and which call it is."""

    ranks: tuple[RankDump, ...]
    number: int
    forwards: int
    rows: Forward


@dataclass(eq=False)
class Side:
    """A dump with tokens."""

    name: str
    parts: list[Part]
    sequences: list[SequenceTokens]
    rows: Rows
    logprobs: list[TokenLogprob]
    engine: dict[str, Any]
    absent: list[list[int]] = field(default_factory=list)

    @functools.cached_property
    def calls(self) -> dict[str, str]:
        """The class of every module, by path, in order of completion."""
        found: dict[str, str] = {}
        for part in self.parts[:1]:
            for name in part.ranks[0].records:
                call = _CALL.match(name)
                if call is not None:
                    found.setdefault(call["path"], call["kind"])
        return found

    @functools.cached_property
    def has_files(self) -> bool:
        return any(item.get("data_name") for _, item in self._items(next(iter(self.calls), "")))

    def slots(self, path: str) -> list[Slot]:
        """The tensors of a module that have one row per token, in the first forward."""
        shape = self.parts[0].rows.shape
        return [Slot(path, slot) for slot, item in self._items(path) if _fits(item.get("shape"), shape)]

    def shape(self, slot: Slot) -> tuple[int, ...]:
        """The shape of one row."""
        found = dict(self._items(slot.path)).get(slot.name, {}).get("shape") or []
        return tuple(found[_leading(found, self.parts[0].rows.shape) :])

    def dtype(self, slot: Slot) -> str:
        return str(dict(self._items(slot.path)).get(slot.name, {}).get("dtype", "")).rpartition(".")[2]

    @functools.cache  # noqa: B019
    def _items(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        kind = self.calls.get(path)
        record = self.parts[0].ranks[0].records.get(f"Module.{path}.{kind}.forward.0", {})
        return [(slot, item) for slot, item in items(record) if isinstance(item, dict) and "shape" in item]

    @functools.cache  # noqa: B019 a side lives as long as its comparison
    def table(self, slot: Slot) -> Optional[Array]:
        """The values of a slot for all rows, [rows, columns] in float64; None if some forward does not have them."""
        blocks = []
        for part in self.parts:
            block = self._block(part, slot)
            if block is None:
                return None
            blocks.append(block)
        if len({block.shape[1] for block in blocks}) != 1:
            return None
        return np.concatenate(blocks)

    @functools.cache  # noqa: B019
    def is_sharded(self, slot: Slot) -> bool:
        """Whether tensor-parallel ranks have different columns of this tensor."""
        part = self.parts[0]
        if len(part.ranks) == 1:
            return False
        blocks = [self._load(rank, part, slot) for rank in part.ranks]
        first = blocks[0]
        return first is not None and not all(
            one is not None and one.shape == first.shape and np.allclose(one, first, rtol=1e-3, atol=1e-6)
            for one in blocks[1:]
        )

    def rank_tables(self, slot: Slot) -> list[Array]:
        """The values of each rank by itself, for tensors that all ranks should have."""
        tables = []
        for index in range(len(self.parts[0].ranks)):
            blocks = [self._load(part.ranks[index], part, slot) for part in self.parts]
            if any(block is None for block in blocks):
                return []
            tables.append(np.concatenate([block for block in blocks if block is not None]))
        return tables

    def _block(self, part: Part, slot: Slot) -> Optional[Array]:
        if not self.is_sharded(slot):
            return self._load(part.ranks[0], part, slot)
        blocks = [self._load(rank, part, slot) for rank in part.ranks]
        whole = [block for block in blocks if block is not None]
        return np.concatenate(whole, axis=1) if len(whole) == len(blocks) else None

    def _load(self, rank: RankDump, part: Part, slot: Slot) -> Optional[Array]:
        kind = self.calls.get(slot.path)
        record = rank.records.get(f"Module.{slot.path}.{kind}.forward.{part.number}")
        if record is None or f"Module.{slot.path}.{kind}.forward.{part.forwards}" in rank.records:
            return None  # a module that is called more than once in a forward has no rows of its own
        item = dict(items(record)).get(slot.name)
        if not isinstance(item, dict) or not item.get("data_name") or not _fits(item.get("shape"), part.rows.shape):
            return None
        if int(np.prod(item["shape"])) > _MAX_VALUES:
            raise DumpError(f"{slot} is too large to be read at once. Collect fewer steps.")
        values = np.asarray(rank.tensor(item["data_name"]))
        return values.reshape(len(part.rows.sequence), -1).astype(np.float64)

    def parameters(self) -> Iterator[tuple[str, Array]]:
        """The weights that the dump holds, by name."""
        seen: set[str] = set()
        for part in self.parts:
            for name, record in part.ranks[0].records.items():
                call = _CALL.match(name)
                if call is None or call["path"] in seen:
                    continue
                seen.add(call["path"])
                for slot, item in items(record):
                    head, _, parameter = slot.partition(".")
                    if head == "parameters" and isinstance(item, dict) and item.get("data_name"):
                        yield f"{call['path']}.{parameter}", np.asarray(part.ranks[0].tensor(item["data_name"]))


def _leading(shape: Any, rows: list[int]) -> int:
    """How many dimensions of a tensor count rows: those of the batch, or one if it was flattened; 0 if none do."""
    if not isinstance(shape, list) or not shape:
        return 0
    if shape[: len(rows)] == rows:
        return len(rows)
    return 1 if shape[0] == int(np.prod(rows)) else 0


def _fits(shape: Any, rows: list[int]) -> bool:
    """Whether a tensor has one row per token."""
    return _leading(shape, rows) > 0


def open_side(dump: Dump, name: str) -> Side:
    """The dump as one side. Raises DumpError if it has no tokens."""
    steps: dict[Optional[int], list[tuple[RankDump, Tokens]]] = {}
    for rank in dump.ranks:
        tokens = rank.tokens
        if tokens is not None and tokens.forwards:
            steps.setdefault(rank.step, []).append((rank, tokens))
    if not steps:
        raise DumpError(f"{dump.path} has no {name} step with tokens.json: collect it again with this version.")
    parts: list[Part] = []
    numbers: dict[str, int] = {}
    sequences: list[SequenceTokens] = []
    logprobs: list[TokenLogprob] = []
    absent: list[list[int]] = []
    columns: list[tuple[Array, ...]] = []
    engine: dict[str, Any] = {}
    for place, step in enumerate(sorted(steps, key=lambda one: -1 if one is None else one)):
        for group in _groups(steps[step]):
            tokens = group[0][1]
            engine = engine or tokens.engine
            shift = _merge(tokens, numbers, sequences, unique=f"{place}/" if tokens.side == "trainer" else "")
            for number, forward in enumerate(tokens.forwards):
                ranks = tuple(rank for rank, _ in group)
                parts.append(Part(ranks, number, len(tokens.forwards), forward))
                columns.append(_columns(forward, shift, place))
            logprobs += [
                TokenLogprob(shift[o.sequence], o.position, o.token, o.logprob, o.kind) for o in tokens.logprobs
            ]
            absent += [[shift[one[0]], one[1], one[2]] for one in tokens.absent]
    joined = [np.concatenate([one[index] for one in columns]) for index in range(6)]
    return Side(name, parts, sequences, Rows(*joined), logprobs, engine, absent)


def _groups(found: list[tuple[RankDump, Tokens]]) -> Iterator[list[tuple[RankDump, Tokens]]]:
    """Ranks with the same rows are one tensor-parallel group."""
    groups: dict[str, list[tuple[RankDump, Tokens]]] = {}
    for rank, tokens in found:
        groups.setdefault(repr([(f.sequence, f.position, f.token) for f in tokens.forwards]), []).append((rank, tokens))
    yield from groups.values()


def _merge(tokens: Tokens, numbers: dict[str, int], sequences: list[SequenceTokens], unique: str) -> list[int]:
    """The number in the whole run of each sequence of a step."""
    shift = []
    for one in tokens.sequences:
        key = unique + one.name
        if key not in numbers:
            numbers[key] = len(sequences)
            sequences.append(SequenceTokens(one.name, list(one.tokens), one.sampling))
        known = sequences[numbers[key]]
        if len(one.tokens) > len(known.tokens):
            known.tokens = list(one.tokens)
        shift.append(numbers[key])
    return shift


def _columns(forward: Forward, shift: list[int], step: int) -> tuple[Array, ...]:
    sequence = np.array([PADDING if one == PADDING else shift[one] for one in forward.sequence], dtype=np.int64)
    again = np.zeros(len(sequence), dtype=bool)
    again[[row for row in forward.again if row < len(again)]] = True
    given = [-1] * len(sequence) if forward.given is None else forward.given
    return (
        sequence,
        np.array(forward.position, dtype=np.int64),
        np.array(forward.token, dtype=np.int64),
        np.array(given, dtype=np.int64),
        np.full(len(sequence), step, dtype=np.int64),
        again,
    )


@dataclass(frozen=True)
class Pairing:
    """A sequence that both sides have: its tokens, and the row of each position (-1: no row) on each side."""

    rollout: int
    trainer: int
    tokens: list[int]
    rollout_rows: Array
    trainer_rows: Array


class RowIndex:
    """Finds the row of a token. A row of the same prefix in a different sequence stands in for a prefix-cache hit."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._own: dict[tuple[int, int], int] = {}
        for row, (sequence, position) in enumerate(zip(side.rows.sequence.tolist(), side.rows.position.tolist())):
            if sequence != PADDING:
                self._own[sequence, position] = row
        self._nodes: dict[tuple[int, int], int] = {}
        self._shared: dict[int, int] = {}
        for number, sequence in enumerate(side.sequences):
            for position, node in enumerate(self._walk(sequence.tokens)):
                known = self._own.get((number, position))
                if known is not None:
                    self._shared.setdefault(node, known)

    def _walk(self, tokens: list[int]) -> Iterator[int]:
        node = 0
        for token in tokens:
            node = self._nodes.setdefault((node, token), len(self._nodes) + 1)
            yield node

    def find(self, sequence: int, length: int) -> Array:
        tokens = self._side.sequences[sequence].tokens[:length]
        return np.array(
            [
                self._own.get((sequence, position), self._shared.get(node, -1))
                for position, node in enumerate(self._walk(tokens))
            ],
            dtype=np.int64,
        )


def pair_sequences(rollout: Side, trainer: Side) -> tuple[list[Pairing], list[str]]:
    """The sequences that both sides have, by their tokens, and the names of rollout sequences without a partner."""
    ours, theirs = RowIndex(rollout), RowIndex(trainer)
    pairs, alone = [], []
    used: Counter[int] = Counter()
    for number, sequence in enumerate(rollout.sequences):
        shared = [_common(sequence.tokens, other.tokens) for other in trainer.sequences]
        best = max(range(len(shared)), key=lambda one: (shared[one], -used[one]))
        length = shared[best]
        if length < min(len(sequence.tokens), len(trainer.sequences[best].tokens)) or length < 2:
            alone.append(sequence.name)
            continue
        used[best] += 1
        rows, golden = ours.find(number, length), theirs.find(best, length)
        pairs.append(Pairing(number, best, sequence.tokens[:length], rows, golden))
    return pairs, alone


def _common(first: list[int], second: list[int]) -> int:
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(place for place in range(length) if first[place] != second[place])
