"""Is the answer right? The call or its module, the ranks, and what kind of fault is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from benchmarks.parallel.cases import CLEAN, Case

RIGHT, ELSEWHERE, OTHER_RANK, OTHER_KIND, MISSED = "right", "wrong call", "wrong rank", "wrong kind", "missed"
SAME, ALARM, UNSURE, BROKEN = "same", "false alarm", "not compared", "failed"


@dataclass(frozen=True)
class Judgement:
    case: str
    layout: str
    kind: str
    verdict: str
    said: str

    @property
    def is_good(self) -> bool:
        return self.verdict in (RIGHT, SAME)

    @property
    def is_located(self) -> bool:
        """The right call and ranks, whatever the kind that is named."""
        return self.verdict in (RIGHT, OTHER_KIND, SAME)


def judge(case: Case, summary: dict[str, Any]) -> Judgement:
    origin = summary["origin"] or {}
    place = f"{origin.get('name')} in {origin.get('module')}, ranks {ranks_of(origin)}"
    notes = f"; {summary['notes'][0]}" if summary["notes"] and not origin else ""
    said = f"{summary['verdict']}; {origin['kind']}: {origin['sentence']} [{place}]" if origin else summary["verdict"]
    verdict = _judge_clean(summary) if case.kind == CLEAN else _judge_fault(case, origin)
    return Judgement(case.id, case.layout, case.kind, verdict, said + notes)


def ranks_of(origin: dict[str, Any]) -> tuple[int, ...]:
    if origin.get("ranks"):
        return tuple(origin["ranks"])
    return () if origin.get("rank") is None else (origin["rank"],)


def _judge_clean(summary: dict[str, Any]) -> str:
    if summary["verdict"] == "same":
        return SAME
    return ALARM if summary["origin"] or summary["error"] or summary["warning"] else UNSURE


def _judge_fault(case: Case, origin: dict[str, Any]) -> str:
    if not origin:
        return MISSED
    if not re.search(case.where, f"{origin['name']} {origin['module']}"):
        return ELSEWHERE
    ranks = ranks_of(origin)
    if case.ranks and (not ranks or not set(ranks) <= set(case.ranks)):
        return OTHER_RANK
    if not re.search(case.named, f"{origin['kind']}: {origin['sentence']}", re.IGNORECASE):
        return OTHER_KIND
    return RIGHT
