"""Calls that one run lacks, inside a module whose results agree: not compared, but nothing to worry about.

Two implementations of one module (fused and unfused, one framework and another) never make the same calls. Where
what comes out of the module was compared and agrees, the calls inside are covered by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, Call
from msprobe.compare.rows import PASS, Row
from msprobe.compare.trace import Group, forward_name


def cover(groups: Sequence[Group]) -> None:
    """Rewrites the reason of unmatched rows that an agreeing module covers."""
    if all(match.how != "unmatched" for match, _ in groups):
        return
    sides = (_Side(groups, golden=False), _Side(groups, golden=True))
    for match, rows in groups:
        if match.how == "unmatched":
            module = sides[match.target is None].agreeing(match.call)
            if module is not None:
                for row in rows:
                    row.reason = f"covered: the results of {module} agree"


class _Side:
    def __init__(self, groups: Sequence[Group], golden: bool) -> None:
        self._parent: dict[str, Optional[str]] = {}
        self._calls: dict[str, Call] = {}
        self._agree: dict[str, bool] = {}
        for match, rows in groups:
            call = match.golden if golden else match.target
            if call is None:
                continue
            self._parent[call.name] = call.parent
            self._calls[call.name] = call
            if call.kind == "module" and match.how != "unmatched":
                self._agree[call.name] = _results_agree(rows)

    def agreeing(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results were compared, if they agree."""
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            result = name
            if module is not None and call.direction == BACKWARD:
                result = f"{module.key}.{BACKWARD}.{module.number}"
            if result in self._agree:
                return result if self._agree[result] else None
            name = self._parent.get(name)
        return None


def _results_agree(rows: Sequence[Row]) -> bool:
    results = [row for row in rows if not row.is_input]
    return bool(results) and all(row.verdict == PASS for row in results)
