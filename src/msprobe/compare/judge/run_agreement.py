"""How far two runs agree: whether a call that only one of them makes can matter."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from msprobe.compare.calls import BACKWARD, Call, Match
from msprobe.compare.judge.effects import results
from msprobe.compare.judge.explain_items import may_be_unused
from msprobe.compare.judge.logged import find_logged, writes
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, PASS, WARNING, Group, Row, is_tensor


class RunAgreement:
    """Whether all that was compared agrees, and up to where."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self.phases = phases_of(groups)

    @functools.cached_property
    def _seen(self) -> tuple[set[Phase], dict[Phase, int]]:
        """The phases with a difference, and the last place of each phase where a result agrees."""
        bad: set[Phase] = set()
        last: dict[Phase, int] = {}
        for place, (match, rows) in enumerate(self._groups):
            if match.how == "unmatched":
                continue
            phase = self.phases[place]
            if any(_differs(match, row) for row in rows):
                bad.add(phase)
            if any(row.verdict == PASS and is_tensor(row.golden) for row in results(rows)):
                last[phase] = place
        return bad, last

    def why(self, place: int) -> str:
        """Why a call does not matter: everything that was compared agrees, and some of it was computed later."""
        phase = self.phases[place]
        bad, last = self._seen
        if any(other <= phase for other in bad):
            return ""
        if last.get(phase, -1) > place:
            return "what was compared after it agrees"
        call = self._groups[place][0].call
        if phase is Phase.FORWARD and self._backward_agrees and not writes(call) and not self._has_backward(call):
            return "the backward that follows agrees"
        return "nothing takes its result" if place in self._logged else ""

    def agrees_after(self, place: int) -> bool:
        """Whether some result of the forward after this place was compared and agrees."""
        return self._seen[1].get(Phase.FORWARD, -1) > place

    def _has_backward(self, call: Call) -> bool:
        """Whether the loss depends on a call that only one run makes."""
        return call.kind == "api" and (call.key, call.number) in self._alone_in_backward

    @functools.cached_property
    def _alone_in_backward(self) -> set[tuple[str, int]]:
        alone = [match.call for match, _ in self._groups if match.how == "unmatched"]
        return {(call.key, call.number) for call in alone if call.direction == BACKWARD}

    @property
    def _backward_agrees(self) -> bool:
        bad, last = self._seen
        return Phase.BACKWARD in last and Phase.BACKWARD not in bad

    @functools.cached_property
    def _logged(self) -> set[int]:
        return find_logged(self._groups, self.phases)


def _differs(match: Match, row: Row) -> bool:
    if row.verdict not in (WARNING, ERROR):
        return False
    return row.why.kind is not Kind.NULL and not may_be_unused(match, row)
