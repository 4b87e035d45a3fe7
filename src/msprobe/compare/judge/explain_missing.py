"""What one run lacks, where its effect was seen to agree: not compared, but nothing to worry about.

Two implementations of one module (fused and unfused, one framework and another) never make the same calls, nor give
them the same arguments. Where what comes out of the module was compared and agrees, where a call's result is used and
agrees there, or where a call's own results agree, the rest is covered by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, Call, Match
from msprobe.compare.measure.distance import ValueKey, result_key, value_key
from msprobe.compare.origin.trace import Group, forward_name
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Row, is_tensor


def cover(groups: Sequence[Group]) -> None:
    """Rewrites the reason of rows without counterpart whose effect agrees."""
    sides: Optional[tuple[_Side, _Side]] = None
    for match, rows in groups:
        if match.how != "unmatched":
            _cover_items(match, rows)
            moved = _moved(match, rows)
            if moved:
                sides = sides or (_Side(groups, golden=False), _Side(groups, golden=True))
                _cover_moved(match, rows, moved, sides[0])
            continue
        if match.call.recompute:
            continue
        sides = sides or (_Side(groups, golden=False), _Side(groups, golden=True))
        why = sides[match.target is None].covering(match.call, rows)
        if why:
            for row in rows:
                row.reason = f"covered: {why}"


def _cover_items(match: Match, rows: Sequence[Row]) -> None:
    """Arguments that only one side gives, and extra outputs of another API, where the other results agree.

    A null against a value counts as such in a forward only: in a backward it is a gradient that was lost."""
    null = [row for row in rows if not row.absent and (row.target is None or row.golden is None)]
    if not null and all(not row.absent for row in rows):
        return
    if not _results_agree([row for row in rows if not row.absent and row not in null]):
        return
    if match.call.direction == FORWARD:
        for row in null:
            row.verdict, row.distance = NOT_COMPARED, None
            row.reason = f"covered: {row.reason}, but the results of {match.call.name} agree"
    other_api = match.target is not None and match.golden is not None and match.target.key != match.golden.key
    for row in rows:
        if row.absent and (other_api or row.is_input or not is_tensor(row.target or row.golden)):
            row.reason = f"covered: the results of {match.call.name} agree"


def _moved(match: Match, rows: Sequence[Row]) -> list[Row]:
    """Differing rows of an API that hold the same numbers on both sides: only their order can differ."""
    if match.call.kind != "api":
        return []
    bad = [row for row in rows if row.verdict in (WARNING, ERROR)]
    return [
        row for row in bad if result_key(row.target) is not None and result_key(row.target) == result_key(row.golden)
    ]


def _cover_moved(match: Match, rows: Sequence[Row], moved: list[Row], side: _Side) -> None:
    """A sum over elements in another order: harmless where the call's results, or those of its module, agree."""
    module = side.agreeing_module(match.call)
    settled = _results_agree([row for row in rows if row not in moved])
    for row in moved:
        if module is not None or (settled and row.is_input):
            row.verdict, row.distance = NOT_COMPARED, None
            row.reason = (
                f"covered: the same numbers in another order, and the results of {module or match.call.name} agree"
            )


class _Side:
    def __init__(self, groups: Sequence[Group], golden: bool) -> None:
        self._parent: dict[str, Optional[str]] = {}
        self._calls: dict[str, Call] = {}
        self._agree: dict[str, bool] = {}
        self._used: dict[tuple[str, ValueKey], bool] = {}
        self._golden = golden
        for match, rows in groups:
            call = match.golden if golden else match.target
            if call is None:
                continue
            self._parent[call.name] = call.parent
            self._calls[call.name] = call
            if match.how != "unmatched":
                self._remember_inputs(call, rows)
            if call.kind in ("module", "grads") and match.how != "unmatched" and _results(rows):
                self._agree[call.key if call.kind == "grads" else call.name] = _results_agree(rows)

    def _remember_inputs(self, call: Call, rows: Sequence[Row]) -> None:
        for row in rows:
            key = value_key(row.golden if self._golden else row.target) if row.is_input else None
            if key is not None:
                place = (call.direction, key)
                self._used[place] = self._used.get(place, True) and row.verdict == PASS

    def covering(self, call: Call, rows: Sequence[Row]) -> str:
        """Why an unmatched call does not matter; empty where it may."""
        module = self.agreeing_module(call)
        if module is not None:
            return f"the results of {module} agree"
        given = [row.golden if self._golden else row.target for row in rows if not row.is_input]
        keys = [key for key in map(value_key, given) if key is not None]
        if keys and all(self._used.get((call.direction, key)) for key in keys):
            return "its result agrees where it is used"
        return ""

    def agreeing_module(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results (or parameters' gradients) were compared, if they agree."""
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            results = [name]
            if module is not None and call.direction == BACKWARD:
                results = [f"{module.key}.{BACKWARD}.{module.number}", module.key]
            for result in results:
                if result in self._agree:
                    return result if self._agree[result] else None
            name = self._parent.get(name)
        return None


def _results(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.is_input]


def _results_agree(rows: Sequence[Row]) -> bool:
    results = _results(rows)
    return bool(results) and all(row.verdict == PASS for row in results)
