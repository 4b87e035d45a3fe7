"""Where a call of one run shows its effect: in the module around it, or where its result is used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, Call, forward_name, module_path
from msprobe.compare.measure.distance import ValueKey, count, value_key
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import PASS, Group, Row, is_tensor


class Effects:
    """The calls of one side, with what was compared around them."""

    def __init__(self, groups: Sequence[Group], golden: bool) -> None:
        self._parent: dict[str, Optional[str]] = {}
        self._calls: dict[str, Call] = {}
        self._agree: dict[str, bool] = {}
        self._groups = groups
        self._golden = golden
        self._cut: set[str] = set()
        self._large: set[str] = set()
        self._bad_gradients: list[str] = []
        for match, rows in groups:
            call = match.golden if golden else match.target
            if call is None:
                continue
            self._parent[call.name] = call.parent
            self._calls[call.name] = call
            if call.kind == "module" and any(row.why.kind is Kind.GRADIENT for row in rows):
                self._cut.add(call.name)
            if call.kind == "module" and any(_is_large(row) for row in results(rows)):
                self._large.add(call.name)
            if call.kind in ("module", "grads") and match.how != "unmatched" and _were_compared(results(rows)):
                agree = results_agree(rows)
                self._agree[call.key if call.kind == "grads" else call.name] = agree
                if call.kind == "grads" and not agree:
                    self._bad_gradients.append(module_path(call.key))

    @functools.cached_property
    def _used(self) -> dict[tuple[str, ValueKey], bool]:
        """Whether a value agrees wherever it is an input, by direction."""
        used: dict[tuple[str, ValueKey], bool] = {}
        for match, rows in self._groups:
            if match.how == "unmatched":
                continue
            for row in rows:
                key = value_key(row.golden if self._golden else row.target) if row.is_input else None
                if key is not None:
                    place = (match.call.direction, key)
                    used[place] = used.get(place, True) and row.verdict == PASS
        return used

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

    def has_gradient_around(self, call: Call) -> bool:
        """The module around a call has a gradient in both runs: the call is inside a function with a backward of its
        own, which needs none."""
        module = self._calls.get(call.parent or "")
        if module is None or module.name in self._cut:
            return False
        return f"{module.key}.{BACKWARD}.{module.number}" in self._calls

    def around(self, module: Optional[str]) -> Iterator[str]:
        """The module and those around it."""
        while module is not None:
            yield module
            module = self._parent.get(module)

    def module_with_same_results(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results agree in both directions, gradients of the weights inside
        included: its calls may be made in another order. A result of one element says too little."""
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            if module is not None and module.name in self._large and self._agree.get(module.name):
                backward = self._agree.get(f"{module.key}.{BACKWARD}.{module.number}", call.direction != BACKWARD)
                if backward and not self._has_bad_gradient(module_path(module.key)):
                    return module.name
            name = self._parent.get(name)
        return None

    def _has_bad_gradient(self, path: str) -> bool:
        inside = path + "." if path else ""
        return any(bad == path or bad.startswith(inside) for bad in self._bad_gradients)

    def agreeing_module(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results (or parameters' gradients) were compared, if they agree."""
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            inside = [name]
            if module is not None and call.direction == BACKWARD:
                inside = [f"{module.key}.{BACKWARD}.{module.number}", module.key]
            for result in inside:
                if result in self._agree:
                    return result if self._agree[result] else None
            name = self._parent.get(name)
        return None


def results(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.is_input]


def _is_large(row: Row) -> bool:
    return row.golden is not None and is_tensor(row.golden) and count(row.golden) > 1


def _were_compared(found: Sequence[Row]) -> bool:
    """Something else than rounding is among the results."""
    return any(row.why.kind is not Kind.ROUNDING for row in found)


def results_agree(rows: Sequence[Row]) -> bool:
    """All results pass; those of nothing but rounding say nothing."""
    found = [row for row in results(rows) if row.why.kind is not Kind.ROUNDING]
    return bool(found) and all(row.verdict == PASS for row in found)
