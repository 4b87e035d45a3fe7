"""Explains single rows of a call that differ without an effect: arguments without an effect, numbers in another order,
and values that infinities or another shape hide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.judge.effects import Effects, results_agree
from msprobe.compare.measure.distance import of_statistics
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, WARNING, Judgement, Row, is_tensor

Judgements = dict[int, Judgement]
"""New judgements by the row's id."""
SAME_NUMBERS = 1e-6
"""How far apart statistics of the same numbers may be: they are added in another order."""


def is_other_api(match: Match) -> bool:
    return match.target is not None and match.golden is not None and match.target.key != match.golden.key


def covered(why: str) -> Judgement:
    return Judgement(NOT_COMPARED, 0.0, Reason(Kind.COVERED, why))


def explain_items(match: Match, rows: Sequence[Row], unlike: Sequence[Row], found: Judgements) -> None:
    """Arguments that only one side passes or that differ, and extra outputs of another API, if the results agree.

    `unlike` are the rows that do not agree. A null on one side counts as an argument only in a forward; in a backward
    it is a lost gradient."""
    null = [row for row in unlike if row.measurement.reason.kind is Kind.NULL]
    given = [row for row in unlike if row.verdict in (WARNING, ERROR) and may_be_unused(match, row)]
    absent = [row for row in unlike if row.absent]
    if not null and not given and not absent:
        return
    if not results_agree([row for row in rows if not row.absent and row not in null]):
        return
    if match.call.direction == FORWARD:
        for row in null:
            found[id(row)] = covered(f"{row.reason}, but the results of {match.call.name} agree")
        for row in given:
            found[id(row)] = Judgement(PASS, 0.0, row.why)
    for row in absent:
        if is_other_api(match) or row.is_input or not is_tensor(row.target or row.golden):
            found[id(row)] = covered(f"the results of {match.call.name} agree")


def may_be_unused(match: Match, row: Row) -> bool:
    """Whether it is a flag, a size or a name: changing these may change no number. Numbers with a fraction (an eps, a
    momentum) may have an effect that the results do not show."""
    if row.why.kind is not Kind.ARGUMENT or not row.is_input:
        return False
    if "dropout" in match.call.key.lower():
        return True
    return not any(isinstance((item or {}).get("value"), float) for item in (row.target, row.golden))


def moved_rows(match: Match, rows: Sequence[Row]) -> list[Row]:
    """Differing rows of an API with the same numbers on both sides: only their order can differ."""
    if match.call.kind != "api":
        return []
    bad = [row for row in rows if row.verdict in (WARNING, ERROR) and row.why.kind in (Kind.VALUES, Kind.BYTES)]
    return [row for row in bad if _same_numbers(row)]


def _same_numbers(row: Row) -> bool:
    """The statistics, which do not see the order, agree except for the order of their own sums."""
    if not is_tensor(row.target) or not is_tensor(row.golden) or row.target is None or row.golden is None:
        return False
    away = row.distance
    if away is None or math.isinf(away) or row.measured is not None or row.measurement.reason.kind is Kind.BYTES:
        away = of_statistics(row.target, row.golden).distance  # the row was measured by files or by checksums
    return away is not None and away <= SAME_NUMBERS


def explain_moved(match: Match, rows: Sequence[Row], moved: list[Row], side: Effects, found: Judgements) -> None:
    """A sum over elements in another order: harmless if the results of the call, or those of its module, agree."""
    module = side.agreeing_module(match.call)
    settled = results_agree([row for row in rows if row not in moved])
    for row in moved:
        if module is not None or (settled and row.is_input):
            why = f"the same numbers in another order, and the results of {module or match.call.name} agree"
            found[id(row)] = covered(why)


def explain_hidden(
    match: Match, rows: Sequence[Row], hidden: list[Row], side: Effects, later: str, found: Judgements
) -> None:
    """Infinities (a mask of -inf) hide the other values of a tensor, and another shape prevents comparing it. The
    results that are computed from it decide."""
    if not hidden:
        return
    module = side.agreeing_module(match.call)
    settled = results_agree([row for row in rows if row not in hidden])
    for row in hidden:
        if settled and row.is_input:
            found[id(row)] = covered(f"{row.reason}, and the results of {match.call.name} agree")
        elif module is not None or later:
            found[id(row)] = covered(f"{row.reason}, and {f'the results of {module} agree' if module else later}")
