"""Whether what a call of one run belongs to agrees: the module around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, Call, forward_name
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import NOT_COMPARED, PASS, Group, Row


class Effects:
    """The calls of the target, with what was compared around them."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._calls: dict[str, Call] = {}
        self._agree: dict[str, bool] = {}
        for match, rows in groups:
            call = match.target
            if call is None:
                continue
            self._calls[call.name] = call
            found = [row for row in rows if not row.is_input]
            compared = match.how != "unmatched" and any(row.verdict != NOT_COMPARED or row.absent for row in found)
            if call.kind in ("module", "grads") and compared:
                self._agree[call.key if call.kind == "grads" else call.name] = _agree(found)

    def agreeing_module(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results (or parameters' gradients) were compared, if they agree."""
        forward = self._calls.get(forward_name(call)) if call.direction == BACKWARD else None
        name = (forward or call).parent
        while name is not None:
            module = self._calls.get(name)
            inside = [name]
            if module is not None and call.direction == BACKWARD:
                inside = [f"{module.key}.{BACKWARD}.{module.number}", module.key]
            for result in inside:
                if result in self._agree:
                    return result if self._agree[result] else None
            name = module.parent if module is not None else None
        return None


def _agree(results: Sequence[Row]) -> bool:
    """Whether all results pass. Results that are only rounding do not count."""
    found = [row for row in results if row.why.kind is not Kind.ROUNDING]
    return bool(found) and all(row.verdict == PASS for row in found)
