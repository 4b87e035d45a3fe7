"""Gradients that a script clips by itself, where the other run calls clip_grad_norm_."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.judge.explain_items import Judgements, covered
from msprobe.compare.phases import Phase, Stacks, is_made_by_optimizer
from msprobe.compare.reasons import BENIGN, Kind
from msprobe.compare.rows import PASS, Group, is_tensor

_WHY = "one run clips the gradients by itself, and all that the optimizer computes from them agrees"


def last_update(groups: Sequence[Group], phases: Sequence[Phase], stacks: Stacks) -> int:
    """The place of the optimizer's last call, where all that it computes was compared, call by call, and agrees;
    else -1."""
    last = -1
    for place, ((match, rows), phase) in enumerate(zip(groups, phases)):
        if phase is not Phase.AFTER or not is_made_by_optimizer(match, stacks):
            continue
        tensors = [row for row in rows if is_tensor(row.golden)]
        agree = all(row.verdict == PASS or row.why.kind is Kind.ROUNDING for row in tensors)
        if match.how == "unmatched" or not agree:
            return -1
        if any(row.verdict == PASS for row in tensors):
            last = place
    return last


def explain_clipping(groups: Sequence[Group], phases: Sequence[Phase], stacks: Stacks) -> Judgements:
    """New judgements, by the row's id, of what comes between the backward and the optimizer's calls."""
    return {
        id(row): covered(_WHY)
        for place in range(last_update(groups, phases, stacks))
        if phases[place] is Phase.AFTER and not is_made_by_optimizer(groups[place][0], stacks)
        for row in groups[place][1]
        if row.verdict != PASS and row.why.kind not in BENIGN
    }
