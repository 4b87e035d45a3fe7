"""Where a call of one run shows its effect: in the module around it, or where its result is used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, Call, forward_name, module_path
from msprobe.compare.measure.distance import ValueKey, count, value_key
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import NOT_COMPARED, PASS, Group, Row, is_tensor


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
        self._giving: set[str] = set()
        self._bad_gradients: list[str] = []
        self._good_gradients: list[str] = []
        for match, rows in groups:
            call = match.golden if golden else match.target
            if call is None:
                continue
            self._parent[call.name] = call.parent
            self._calls[call.name] = call
            if call.kind not in ("module", "grads"):
                continue
            given = results(rows)
            if call.kind == "module":
                if any(row.why.kind is Kind.GRADIENT for row in rows):
                    self._cut.add(call.name)
                if any(_is_large(row) for row in given):
                    self._large.add(call.name)
                if any(row.golden or row.target for row in given):
                    self._giving.add(call.name)
            if match.how != "unmatched" and _were_compared(given):
                agree = results_agree(rows)
                self._agree[call.key if call.kind == "grads" else call.name] = agree
                if call.kind == "grads":
                    (self._good_gradients if agree else self._bad_gradients).append(module_path(call.key))

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
        """Why an unmatched call does not matter; empty if it may matter."""
        module = self.agreeing_module(call)
        if module is None and call.direction == BACKWARD and not self.is_doubtful(call):
            module = self.module_with_same_results(call)
        if module is not None:
            return f"the results of {module} agree"
        given = [row.golden if self._golden else row.target for row in rows if not row.is_input]
        keys = [key for key in map(value_key, given) if key is not None]
        if keys and all(self._used.get((call.direction, key)) for key in keys):
            return "its result agrees where it is used"
        return ""

    def agrees_where_used(self, call: Call, row: Row) -> bool:
        """No matched call is given this result, or all that are agree."""
        key = value_key(row.golden if self._golden else row.target)
        return key is not None and self._used.get((call.direction, key), True)

    def has_gradient_around(self, call: Call) -> bool:
        """Whether the module around a call has a gradient in both runs. Then the call is inside a function that has its
        own backward, and needs no gradient itself."""
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
        included: its calls may be made in a different order. A result of one element says too little."""
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            if module is not None and self._computes_the_same(module, call):
                return module.name
            name = self._parent.get(name)
        return None

    def has_same_results_itself(self, call: Call) -> bool:
        """Whether the call is the backward of a module that returns the same gradients, also for the weights inside."""
        if call.kind != "module" or call.direction != BACKWARD:
            return False
        return self._backward_agrees(call, call) and not self._has_gradient(call, self._bad_gradients)

    def _computes_the_same(self, module: Call, call: Call) -> bool:
        if module.name not in self._large or not self._agree.get(module.name):
            return False
        return self._backward_agrees(module, call) and not self._has_gradient(module, self._bad_gradients)

    def _backward_agrees(self, module: Call, call: Call) -> bool:
        """The first module returns no gradient, because its input needs none: there, the gradients of its weights
        decide."""
        name = f"{module.key}.{BACKWARD}.{module.number}"
        if name in self._agree or call.direction != BACKWARD:
            return self._agree.get(name, True)
        return name not in self._giving and self._has_gradient(module, self._good_gradients)

    def _has_gradient(self, module: Call, gradients: Sequence[str]) -> bool:
        """Whether one of these gradients is of a weight inside the module."""
        path = module_path(module.key)
        inside = path + "." if path else ""
        return any(one == path or one.startswith(inside) for one in gradients)

    def agreeing_module(self, call: Call) -> Optional[str]:
        """The nearest module around a call whose results (or parameters' gradients) were compared, if they agree."""
        nearest = self._nearest(call)
        return nearest if nearest is not None and self._agree[nearest] else None

    def is_doubtful(self, call: Call) -> bool:
        """Whether the results of that module do not agree."""
        nearest = self._nearest(call)
        return nearest is not None and not self._agree[nearest]

    def _nearest(self, call: Call) -> Optional[str]:
        name = self._parent.get(forward_name(call), call.parent) if call.direction == BACKWARD else call.parent
        while name is not None:
            module = self._calls.get(name)
            inside = [name]
            if module is not None and call.direction == BACKWARD:
                inside = [f"{module.key}.{BACKWARD}.{module.number}", module.key]
            for result in inside:
                if result in self._agree:
                    return result
            name = self._parent.get(name)
        return None


def results(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.is_input]


def _is_large(row: Row) -> bool:
    return row.golden is not None and is_tensor(row.golden) and count(row.golden) > 1


def _were_compared(found: Sequence[Row]) -> bool:
    """Whether some result was compared, or exists in one run only."""
    return any(row.verdict != NOT_COMPARED or row.absent for row in found)


def results_agree(rows: Sequence[Row]) -> bool:
    """Whether all results pass. Results that are only rounding do not count."""
    found = [row for row in results(rows) if row.why.kind is not Kind.ROUNDING]
    return bool(found) and all(row.verdict == PASS for row in found)
