"""The update of a parameter differs: which one, and by what factor. The settings of the optimizer may explain it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.excuses import change_of_mean, same_changes
from msprobe.compare.flow.settle import is_evidence
from msprobe.compare.measure.distance import count, epsilon, scale
from msprobe.compare.operators import BUFFER, UPDATE, is_derived
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace, bad_rows
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.reasons import SIDES
from msprobe.compare.rows import Item, Row
from msprobe.messages import Message

_CLEAR = 30.0
"""How much larger than rounding the change of a mean must be to show a factor."""
_EXACT = 1e-2
"""How far a factor may be from the same factor of a different statistic."""
_NOTHING = 1e-6
"""A smaller factor is that of a parameter that does not change."""


def updates_agree(trace: Trace) -> bool:
    """Whether the update of every parameter was compared and agrees."""
    rows = [row for _, rows in _updates(trace) for row in rows]
    if not rows or not (trace.facts.same_changes if trace.facts is not None else same_changes(trace.groups)):
        return False
    return not bad_rows(rows) and not any(row.absent and row.excuse is None for row in rows)


def same_gradients(trace: Trace) -> bool:
    """Whether the gradients that the optimizer received were compared, for every parameter, and agree."""
    rows = [row for _, rows in _updates(trace) for row in rows if row.slot.endswith(".gradient")]
    if bad_rows(rows) or any(row.absent and row.excuse is None for row in rows):
        return False
    return any(map(is_evidence, rows))


def both_update(trace: Trace) -> bool:
    """Whether parameters change in both runs."""
    for golden in (False, True):
        sides = [{row.slot: row.golden if golden else row.target for row in rows} for _, rows in _updates(trace)]
        if not any(_changes(one.get("input.before"), one.get("output.after")) for one in sides):
            return False
    return True


def _changes(before: Item, after: Item) -> bool:
    if before is None or after is None:
        return False
    return any(before.get(key) != after.get(key) for key in ("Max", "Min", "Mean", "Norm", "md5"))


def _updates(trace: Trace) -> Iterator[tuple[int, Sequence[Row]]]:
    for index, (match, rows) in enumerate(trace.groups):
        if match.call.key.startswith(UPDATE):
            yield index, rows


def blame_update(trace: Trace, loop: Sequence[Message] = ()) -> Optional[Candidate]:
    """The first parameter whose update differs, though it was the same before. None if there is none. `loop`: what the
    training loops do differently, such as a different class of the optimizer; the update shows its effect."""
    for index, rows in _updates(trace):
        named = {row.slot.rpartition(".")[2]: row for row in rows}
        after, before, gradient = (named.get(key) for key in ("after", "before", "gradient"))
        if after is None or after not in bad_rows(rows) or (before is not None and before in bad_rows(rows)):
            continue
        name = trace.groups[index][0].call.key.removeprefix(UPDATE)
        if gradient is not None and gradient in bad_rows(rows):
            said = Message("update.gradient", name=name)
            return replace(candidate("update", index, gradient, trace, tuple(loop)), said=said)
        if (after.golden or {}).get(BUFFER):
            said = _with_factor(Message("update.buffer", name=name), before, after, "update.change_factor")
            found = candidate("buffer", index, after, trace, (*_last_writers(after, trace), *loop))
            return replace(found, said=said)
        id = "update.differs" if before is not None else "update.after"
        said = _with_factor(Message(id, name=name), before, after, "update.factor")
        said = Message("also", parts=[*loop, said]) if loop else said
        return replace(candidate("update", index, after, trace, tuple(_last_writers(after, trace))), said=said)
    return None


def _with_factor(said: Message, before: Optional[Row], after: Row, id: str) -> Message:
    """A mean is linear: its change shows the factor of an update."""
    if before is None:
        return said
    ours, theirs = (change_of_mean(before.target, after.target), change_of_mean(before.golden, after.golden))
    item = after.golden or {}
    noise = 8.0 * epsilon(item) * scale(item) / math.sqrt(max(count(item), 1))
    if ours is None or theirs is None or abs(theirs) < _CLEAR * noise:
        return said
    factor = ours / theirs
    if not math.isfinite(factor) or math.isclose(factor, 1.0, rel_tol=_EXACT):
        return said
    return Message(id, said=said, factor=f"{factor:.3g}" if abs(factor) > _NOTHING else "0")


def _last_writers(row: Row, trace: Trace) -> Iterator[Message]:
    """The calls that wrote the memory of a row last, in each run, as far as they were recorded."""
    for side, run in zip(trace.facts.sides if trace.facts is not None else (), SIDES.values()):
        value = side.graph.of_row.get(id(row))
        maker = value.maker if value is not None else None
        last = maker if maker is not None else side.graph.last_writer(value.memory if value is not None else None)
        if last is not None and not is_derived(last.call.key):
            yield Message("update.writer", side=run, call=last.call.name)
