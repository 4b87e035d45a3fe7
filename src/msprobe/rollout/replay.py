"""Local replay of both sides: the error of every value against float64, on each side's own inputs.

The trainer's error is the yardstick: it has the rounding of the same operation in the same dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from msprobe.rollout.logprobs import HeadRows
from msprobe.rollout.matching import Matcher, Source, layer_of
from msprobe.rollout.reference import ATTENDED, KEY, QUERY, VALUE, Node, Reference, Variation
from msprobe.rollout.sides import Pairing, Side, Slot

Array = np.ndarray[Any, Any]
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-9}
"""Unit roundoff. Other dtypes (fp8) are only stored, never the dtype of an output."""
_ANGLE = 2.0**-24  # engines keep the angles of the rotation in float32


@dataclass
class Errors:
    """The error of one value over all rows. Squares: `error` and `size` per row, and per column."""

    rows: list[Array] = field(default_factory=list)
    error: list[Array] = field(default_factory=list)
    size: list[Array] = field(default_factory=list)
    columns: Optional[Array] = None
    column_sizes: Optional[Array] = None

    def add(self, rows: Array, recorded: Array, exact: Array) -> None:
        square = (recorded - exact) ** 2
        sizes = exact**2
        self.rows.append(rows)
        self.error.append(square.sum(1))
        self.size.append(sizes.sum(1))
        self.columns = square.sum(0) if self.columns is None else self.columns + square.sum(0)
        self.column_sizes = sizes.sum(0) if self.column_sizes is None else self.column_sizes + sizes.sum(0)

    def relative(self, rows: Optional[Array] = None) -> float:
        """The relative error over all rows, or over these."""
        error, size = np.concatenate(self.error), np.concatenate(self.size)
        if rows is not None:
            chosen = np.isin(np.concatenate(self.rows), rows)
            if not chosen.any():
                return 0.0
            error, size = error[chosen], size[chosen]
        return float(np.sqrt(error.sum() / max(float(size.sum()), 1e-300)))

    def by_column(self) -> Array:
        """The relative error of each column; columns that are nearly zero are measured against the mean column."""
        assert self.columns is not None
        assert self.column_sizes is not None
        sizes = np.maximum(self.column_sizes, self.column_sizes.mean() * 1e-2)
        made: Array = np.sqrt(self.columns / np.maximum(sizes, 1e-300))
        return made

    @property
    def all_rows(self) -> Array:
        return np.concatenate(self.rows)


@dataclass
class Replay:
    """What both sides have, ready to be computed again."""

    rollout: Side
    trainer: Side
    pairs: list[Pairing]
    reference: Reference
    matcher: Matcher
    order: list[Node] = field(default_factory=list)
    aliases: dict[str, Node] = field(default_factory=dict)
    golden: dict[Node, Source] = field(default_factory=dict)
    head_rows: Optional[HeadRows] = None

    @property
    def sources(self) -> dict[Node, Source]:
        return self.matcher.sources

    def prepare(self) -> None:
        """Finds which recorded value is which."""
        self.matcher.match()
        for path in self.reference.leaves:
            for slot, name in (("in", "input."), ("out", "output.")):
                found = [one for one in self.trainer.slots(path) if one.name.startswith(name)]
                if found:
                    self.golden[Node(path, slot)] = Source((found[0],))
        self._find_aliases()
        equal = self._dry_run()
        self.matcher.match_attention(self.order, equal)
        for place, node in enumerate(self.order):
            after = next((one for one in self.order[place + 1 :] if one.slot == "in"), None)
            if node.slot == ATTENDED and after in self.golden:
                self.golden[node] = self.golden[after]
            elif node.slot == VALUE and node in equal:
                self.golden[node] = self.golden[equal[node]]
        self._match_results()

    def _find_aliases(self) -> None:
        leaves = set(self.reference.leaves)
        for path in self.trainer.calls:
            if path in leaves or path not in self.reference.modules:
                continue
            slot = next((one for one in self.trainer.slots(path) if self._is_input(one)), None)
            table = None if slot is None else self.trainer.table(slot)
            if table is None:
                continue
            for leaf in leaves:
                if not leaf.startswith(f"{path}.") or layer_of(leaf) != layer_of(path):
                    continue
                source = self.golden.get(Node(leaf, "in"))
                values = None if source is None else source.values(self.trainer)
                if values is not None and values.shape == table.shape and np.array_equal(values, table):
                    self.aliases[path] = Node(leaf, "in")
                    break

    def _is_input(self, slot: Slot) -> bool:
        return slot.name.startswith("input") and self.trainer.dtype(slot).startswith(("float", "bfloat"))

    def _dry_run(self) -> dict[Node, Node]:
        """The order of all values, and which of them are an output unchanged, from one trainer sequence."""
        pair = min(self.pairs, key=lambda one: len(one.tokens))
        rows = pair.trainer_rows
        equal: dict[Node, Node] = {}
        outputs: dict[Node, Array] = {}

        def recorded(node: Node) -> Optional[tuple[Array, Array]]:
            return self._take(self.golden.get(node), self.trainer, rows)

        def observe(node: Node, exact: Array) -> None:
            self.order.append(node)
            if node.slot == "out":
                known = recorded(node)
                outputs[node] = exact if known is None else known[0]
            elif node.slot == VALUE:
                for other, values in outputs.items():
                    if values.shape == exact.shape and np.array_equal(values, exact):
                        equal[node] = other

        self.reference.run(pair.tokens, recorded, observe, self.aliases)
        return equal

    def _match_results(self) -> None:
        """Modules with several inputs: by the prediction from what is known of the rollout."""
        wanted = [n for n in self.order if n.slot == "out" and n not in self.sources and n.path != self.head]
        pair = max(self.pairs, key=lambda one: int((one.rollout_rows >= 0).sum()))
        known = pair.rollout_rows >= 0

        def observe(node: Node, exact: Array) -> None:
            if node in wanted and node not in self.sources:
                self.matcher.match_result(node, exact[known], pair.rollout_rows[known])

        if wanted:
            self.run_rollout(pair, observe)

    @property
    def head(self) -> str:
        """The path of the module that makes the logits: the last one."""
        return self.order[-1].path if self.order else ""

    @staticmethod
    def _take(source: Optional[Source], side: Side, rows: Array) -> Optional[tuple[Array, Array]]:
        values = None if source is None else source.values(side)
        if values is None:
            return None
        return values[np.maximum(rows, 0)], rows >= 0

    def recorded(self, node: Node, pair: Pairing) -> Optional[tuple[Array, Array]]:
        """What the rollout recorded of a value for one sequence, and for which of its tokens."""
        return self._take(self.sources.get(node), self.rollout, pair.rollout_rows)

    def run_rollout(self, pair: Pairing, observe: Any, variation: Optional[Variation] = None) -> None:
        """Computes one sequence on the rollout's own values."""
        self.reference.run(
            pair.tokens,
            lambda node: self.recorded(node, pair),
            observe,
            self.aliases,
            variation,
        )

    def measure_trainer(self) -> dict[Node, Errors]:
        errors: dict[Node, Errors] = {}
        for pair in self.pairs:
            rows = pair.trainer_rows

            def observe(node: Node, exact: Array, rows: Array = rows) -> None:
                known = self._take(self.golden.get(node), self.trainer, rows)
                if known is not None and known[0].shape == exact.shape:
                    there = known[1]
                    errors.setdefault(node, Errors()).add(rows[there], known[0][there], exact[there])

            self.reference.run(
                pair.tokens,
                lambda node, rows=rows: self._take(self.golden.get(node), self.trainer, rows),  # type: ignore[misc]
                observe,
                self.aliases,
            )
        return errors

    def measure_rollout(
        self,
        only: Optional[Iterable[Node]] = None,
        variation: Optional[Variation] = None,
        most: Optional[int] = None,
    ) -> dict[Node, Errors]:
        """The errors of the rollout; of some values only, with a variation, on the first `most` sequences."""
        errors: dict[Node, Errors] = {}
        wanted = None if only is None else set(only)
        for pair in self.pairs[:most]:

            def observe(node: Node, exact: Array, pair: Pairing = pair) -> None:
                if wanted is not None and node not in wanted:
                    return
                known = self.recorded(node, pair)
                if known is not None and known[0].shape == exact.shape:
                    there = known[1]
                    rows = pair.rollout_rows[there]
                    errors.setdefault(node, Errors()).add(rows, known[0][there], exact[there])

            self.run_rollout(pair, observe, variation)
        return errors

    def collect(self, node: Node) -> tuple[Array, Array, Array]:
        """The rows of a value, what the rollout recorded, and what float64 gives."""
        rows: list[Array] = []
        recorded: list[Array] = []
        exact: list[Array] = []
        for pair in self.pairs:

            def observe(one: Node, values: Array, pair: Pairing = pair) -> None:
                known = self.recorded(node, pair) if one == node else None
                if known is not None:
                    rows.append(pair.rollout_rows[known[1]])
                    recorded.append(known[0][known[1]])
                    exact.append(values[known[1]])

            self.run_rollout(pair, observe)
        return np.concatenate(rows), np.concatenate(recorded), np.concatenate(exact)

    def unit(self, node: Node) -> float:
        """The unit roundoff of the rollout's value."""
        source = self.sources.get(node)
        if source is None:
            return UNIT.get(self.head_rows.dtype if self.head_rows is not None else "", UNIT["float32"])
        return UNIT.get(self.rollout.dtype(source.slots[0]), UNIT["float32"])

    def expected(self, node: Node, golden: Mapping[Node, Errors]) -> float:
        """The relative error that rounding alone explains."""
        unit = self.unit(node)
        floor = unit
        if node.slot in (QUERY, KEY):
            floor = unit * 2 + _ANGLE * float(self.rollout.rows.position.max())
        known = golden.get(node)
        if known is None:
            return floor * 2
        source = self.golden[node]
        theirs = UNIT.get(self.trainer.dtype(source.slots[0]), UNIT["float32"])
        return max(floor * 0.5, known.relative() * max(unit / theirs, 1.0))
