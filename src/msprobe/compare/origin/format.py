"""The suspect in a quantised run: the first factor or product that exceeds the error of its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.judge.quantised import Finding
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.messages import Message

_MOST = 3


def blame_format(findings: Sequence[Finding], trace: Trace) -> Optional[Candidate]:
    if not findings:
        return None
    first, *rest = findings
    others = [one for one in rest if (one.module, one.role) != (first.module, first.role)]
    evidence = tuple(dict.fromkeys(map(_said, others)))[:_MOST]
    return replace(candidate("quantised", first.index, first.row, trace, evidence), said=_said(first))


def _said(finding: Finding) -> Message:
    return Message("origin.quantised", module=finding.module, why=finding.why)
