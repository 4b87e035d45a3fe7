"""Which tensor of the rollout is which value of the trainer's model.

No list of names or classes: a module of the trainer, computed in float64 on an input that the rollout recorded, is
compared with the columns of what the rollout recorded as output. Fused modules (q, k and v in one; gate and up in one;
a sum and a norm in one), shards and renamed modules are found this way. A layer whose weights are wrong fits nothing,
so the layers vote: the columns that most layers use hold for all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.rollout.reference import ATTENDED, KEY, QUERY, VALUE, Node, Reference
from msprobe.rollout.sides import Side, Slot

Array = np.ndarray[Any, Any]
_SAMPLE = 96
_GOOD = 0.3
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Source:
    """Where the rollout has a value: columns of one tensor, or of the sum of two."""

    slots: tuple[Slot, ...]
    columns: Optional[tuple[int, ...]] = None  # None: all

    def values(self, side: Side) -> Optional[Array]:
        tables = [side.table(slot) for slot in self.slots]
        if any(table is None for table in tables):
            return None
        total = tables[0] if len(tables) == 1 else np.sum([table for table in tables if table is not None], axis=0)
        assert total is not None
        return total if self.columns is None else total[:, list(self.columns)]


@dataclass(frozen=True)
class Fit:
    """A module of the rollout that computes a module of the trainer, and how far off it is (relative)."""

    given: Source
    result: Source
    error: float


def layer_of(path: str) -> tuple[str, ...]:
    """The numbers in a path: `model.layers.3.mlp` is in layer 3."""
    return tuple(_DIGITS.findall(path))


def general(path: str) -> str:
    """The path with `*` for its numbers."""
    return _DIGITS.sub("*", path)


class Matcher:
    """Matches one rollout with the modules of the trainer."""

    def __init__(self, rollout: Side, trainer: Side, reference: Reference) -> None:
        self._rollout = rollout
        self._trainer = trainer
        self._reference = reference
        rows = np.flatnonzero(rollout.rows.sequence >= 0)
        self._rows = rows[np.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).astype(int)]
        self.sources: dict[Node, Source] = {}
        self.unmatched: list[str] = []

    def match(self) -> dict[Node, Source]:
        """The source of every value that was found."""
        fits: dict[str, list[Fit]] = {}
        for path in self._reference.leaves:
            slots = [slot for slot in self._trainer.slots(path) if slot.name.startswith("input")]
            if len(slots) == 1 and path in self._trainer.calls:
                fits[path] = sorted(self._fits(path, self._trainer.shape(slots[0])), key=lambda fit: fit.error)
        for path, fit in self._vote(fits).items():
            self.sources[Node(path, "in")] = fit.given
            self.sources[Node(path, "out")] = fit.result
        self.unmatched = [path for path in fits if Node(path, "out") not in self.sources]
        return self.sources

    # Single modules.

    def _fits(self, path: str, shape: tuple[int, ...]) -> Iterator[Fit]:
        """The candidates in the same layer."""
        width = int(np.prod(shape, dtype=np.int64))
        seen: dict[bytes, Array] = {}
        for candidate in self._candidates(path):
            outputs = [slot for slot in self._rollout.slots(candidate) if slot.name.startswith("output")]
            for given in self._inputs(candidate, path, width):
                values = given.values(self._rollout)
                if values is None:
                    continue
                rows = values[self._rows]
                key = rows.tobytes()
                if key not in seen:
                    seen[key] = self._reference.call(path, rows if shape else rows.astype(np.int64), shape)
                for slot in outputs:
                    if slot in given.slots:
                        continue
                    fit = self._columns(seen[key], given, slot)
                    if fit is not None:
                        yield fit

    def _candidates(self, path: str) -> list[str]:
        return [one for one in self._rollout.calls if layer_of(one) == layer_of(path)]

    def _inputs(self, candidate: str, path: str, width: int) -> Iterator[Source]:
        """Inputs of the right width; outputs too (a fused norm returns the sum that it normalised)."""
        slots = [slot for slot in self._rollout.slots(candidate) if self._is_input(slot, path, width)]
        for slot in slots:
            yield Source((slot,))
        pair = [slot for slot in slots if slot.name.startswith("input")]
        if len(pair) == 2:
            yield Source(tuple(pair))

    def _is_input(self, slot: Slot, path: str, width: int) -> bool:
        is_token = not self._trainer.shape(Slot(path, "input.0")) and width == 1
        if is_token != (not self._rollout.dtype(slot).startswith(("float", "bfloat"))):
            return False
        table = self._rollout.table(slot)
        return table is not None and table.shape[1] == width

    def _columns(self, wanted: Array, given: Source, slot: Slot) -> Optional[Fit]:
        """The columns of a tensor that hold these values best."""
        table = self._rollout.table(slot)
        if table is None or table.shape[1] < wanted.shape[1] or self._rollout.dtype(slot).startswith("int"):
            return None
        values = table[self._rows]
        if values.shape == wanted.shape and _distance(values, wanted) < 0.05:
            return Fit(given, Source((slot,)), _distance(values, wanted))
        if values.shape[1] == 1:
            return None
        unit = [one / np.maximum(np.linalg.norm(one, axis=0), 1e-300) for one in (wanted, values)]
        columns = np.argmax(unit[0].T @ unit[1], axis=1)
        if values.shape == wanted.shape and _distance(values, wanted) < 1:
            columns = np.arange(values.shape[1])
        error = _distance(values[:, columns], wanted)
        whole = values.shape == wanted.shape and np.array_equal(columns, np.arange(len(columns)))
        return Fit(given, Source((slot,), None if whole else tuple(columns.tolist())), error)

    # The vote of the layers.

    def _vote(self, fits: dict[str, list[Fit]]) -> dict[str, Fit]:
        kinds: dict[str, list[str]] = defaultdict(list)
        for path in fits:
            kinds[general(path)].append(path)
        chosen: dict[str, Fit] = {}
        for paths in kinds.values():
            votes = Counter(_pattern(fits[path][0]) for path in paths if fits[path] and fits[path][0].error < _GOOD)
            if votes:
                pattern = votes.most_common(1)[0][0]
            else:
                best = min((fits[path][0] for path in paths if fits[path]), key=lambda fit: fit.error, default=None)
                if best is None:
                    continue
                pattern = self._by_name(paths, fits) or _pattern(best)
            for path in paths:
                fit = self._apply(pattern, path, fits[path])
                if fit is not None:
                    chosen[path] = fit
        return chosen

    def _by_name(self, paths: list[str], fits: dict[str, list[Fit]]) -> Any:
        """If no layer fits: the module with the trainer's own name, if the rollout has one."""
        for path in paths:
            for fit in fits[path]:
                if fit.given.slots[0].path == path:
                    return _pattern(fit)
        return None

    def _apply(self, pattern: Any, path: str, fits: list[Fit]) -> Optional[Fit]:
        """The same columns of the same module in this layer, with the input that fits best: a fused norm has a
        residual in all layers but the first."""
        given, result, columns = pattern
        numbers = layer_of(path)
        made = [[Slot(_fill(one, numbers), name) for one, name in part] for part in (given, result)]
        for fit in fits:
            same_result = fit.result == Source(tuple(made[1]), columns)
            if same_result and fit.given.slots[0].path == made[0][0].path:
                return fit
        if any(self._rollout.table(slot) is None for part in made for slot in part):
            return fits[0] if fits and fits[0].error < _GOOD else None
        return Fit(Source(tuple(made[0])), Source(tuple(made[1]), columns), float("nan"))

    # Values between modules.

    def match_attention(self, order: list[Node], equal: dict[Node, Node]) -> None:
        """q, k, v and the result of attention. `order`: all values as they are computed; `equal`: which value is
        the output of a module unchanged."""
        for place, node in enumerate(order):
            if node.slot != ATTENDED:
                continue
            after = next((one for one in order[place + 1 :] if one.slot == "in"), None)
            value = self.sources.get(equal.get(Node(node.path, VALUE), Node("", "")))
            if after is None or after not in self.sources:
                continue
            self.sources[node] = self.sources[after]
            if value is not None:
                self.sources[Node(node.path, VALUE)] = value
                self._match_rotated(node.path, self.sources[after], value)

    def _match_rotated(self, path: str, attended: Source, value: Source) -> None:
        """The module that returns the attended values and takes v unchanged also takes q and k."""
        result, taken = attended.values(self._rollout), value.values(self._rollout)
        if result is None or taken is None:
            return
        for candidate in self._candidates(path):
            slots = self._rollout.slots(candidate)
            tables = {slot: self._rollout.table(slot) for slot in slots}
            gives = any(s.name.startswith("output") and _same(t, result) for s, t in tables.items())
            given = [slot for slot in slots if slot.name.startswith("input") and tables[slot] is not None]
            if not gives or len(given) < 3:
                continue
            third = next((slot for slot in given if _same(tables[slot], taken)), None)
            rest = [slot for slot in given if slot != third]
            if third is not None and len(rest) >= 2:
                self.sources[Node(path, QUERY)] = Source((rest[0],))
                self.sources[Node(path, KEY)] = Source((rest[1],))
                return

    def match_result(self, node: Node, predicted: Array, rows: Array) -> None:
        """A value with several inputs (experts): the output in its layer that is nearest to the prediction."""
        best: tuple[float, Optional[Slot]] = (2.0, None)
        for candidate in self._candidates(node.path):
            for slot in self._rollout.slots(candidate):
                table = self._rollout.table(slot)
                if slot.name.startswith("output") and table is not None and table.shape[1] == predicted.shape[1]:
                    distance = _distance(table[rows], predicted)
                    if distance < best[0]:
                        best = (distance, slot)
        if best[1] is not None:
            self.sources[node] = Source((best[1],))


def _pattern(fit: Fit) -> Any:
    """A fit without the number of its layer."""

    def names(slots: tuple[Slot, ...]) -> tuple[tuple[str, str], ...]:
        return tuple((general(slot.path), slot.name) for slot in slots)

    return names(fit.given.slots), names(fit.result.slots), fit.result.columns


def _fill(path: str, numbers: tuple[str, ...]) -> str:
    """The path of a pattern in one layer."""
    parts = iter(numbers)
    return re.sub(r"\*", lambda _: next(parts, "*"), path)


def _same(first: Optional[Array], second: Array) -> bool:
    return first is not None and first.shape == second.shape and np.array_equal(first, second)


def _distance(first: Array, second: Array) -> float:
    return float(np.linalg.norm(first - second) / max(float(np.linalg.norm(second)), 1e-300))
