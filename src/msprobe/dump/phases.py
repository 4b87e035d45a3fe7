"""The phases of a training step, and flow.json, which has the phase and the micro-batch of each record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.json_files import parse_json
from msprobe.dump.untrusted.json_values import as_list, as_text, as_whole

FORWARD = "forward"
RECOMPUTATION = "recomputation"
BACKWARD = "backward"
CLIPPING = "clipping"
OPTIMIZER = "optimizer"
EVALUATION = "evaluation"
OTHER = "other"
PHASES = frozenset((FORWARD, RECOMPUTATION, BACKWARD, CLIPPING, OPTIMIZER, EVALUATION, OTHER))

Phase = tuple[str, int]
"""A phase and the micro-batch, counted from 0."""


def read_line(text: bytes) -> Optional[tuple[Phase, Optional[int]]]:
    """The phase in a line of the journal, and the call that it also belongs to; None if the line is damaged."""
    try:
        members = parse_json(text)
    except ValueError:
        return None
    phase, microbatch, call = members.get("phase"), members.get("microbatch"), members.get("call")
    if not isinstance(phase, str) or phase not in PHASES or type(microbatch) is not int or microbatch < 0:
        return None
    return ((phase, microbatch), call) if call is None or type(call) is int else None


def runs(phases: Iterable[Optional[Phase]]) -> Iterator[tuple[int, Phase]]:
    """Where the phase changes: the index of the first record, and its phase."""
    last: Optional[Phase] = None
    for index, phase in enumerate(phases):
        if phase is not None and phase != last:
            yield index, phase
            last = phase


def read_runs(value: Any, names: Sequence[str], where: str) -> dict[str, Phase]:
    """The phase of each record, from the list in flow.json. Raises DumpError if it is damaged."""
    begun: list[tuple[int, Phase]] = []
    for run in as_list(value, where):
        if len(as_list(run, f"a phase in {where}")) != 3:
            raise DumpError(f"a phase in {where} has {len(run)} members, not 3.")
        least = begun[-1][0] if begun else 0
        first = as_whole(run[0], f"the first record of a phase in {where}", least, max(len(names) - 1, 0))
        begun.append((first, (as_text(run[1], where), as_whole(run[2], f"a micro-batch in {where}"))))
    found: dict[str, Phase] = {}
    for (first, phase), (last, _) in zip(begun, [*begun[1:], (len(names), None)]):
        found.update(dict.fromkeys(names[first:last], phase))
    return found
