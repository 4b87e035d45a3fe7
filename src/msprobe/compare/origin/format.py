"""The suspect in a quantised run: the first factor or product that exceeds the error of its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.judge.quantised import Finding
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate

_MOST = 3


def blame_format(findings: Sequence[Finding], trace: Trace) -> Optional[Candidate]:
    if not findings:
        return None
    first, *rest = findings
    others = [one for one in rest if (one.module, one.role) != (first.module, first.role)]
    evidence = tuple(dict.fromkeys(one.sentence for one in others))[:_MOST]
    return replace(candidate("quantised", first.index, first.row, trace, evidence), said=first.sentence)
