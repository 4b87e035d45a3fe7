"""One graph of values for one side of a unit (a rank in a step).

A value is a tensor at one time: made by a call, used by others, in a memory. Where the collector recorded identity
(`value_id`, `memory`), these are facts: equal numbers are one value, and a value that no call made lies in the memory
of an earlier one (an unrecorded view, an unrecorded write). Elsewhere (level L0, MindSpore, dumps of other tools) two
items with the same statistics are taken for one value.

A call that writes in place makes a new value in the same memory. A module with recorded calls inside is a border, not
a maker: whatever is made inside and has no recorded use is taken to reach its results.

The backward is the mirror of the forward: the k-th gradient that the backward of a call returns belongs to the k-th
tensor that its forward was given, and sums of gradients are not recorded. So a `Value` also has what arrived for it in
the backward (`given`), and what was taken from there (`taken`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match, forward_name
from msprobe.compare.measure.distance import count, epsilon, number
from msprobe.compare.operators import is_derived, keeps_statistics, word_of, writes_first
from msprobe.compare.rows import ERROR, WARNING, Group, Item, Row, is_tensor, slots


class Part(NamedTuple):
    """One tensor of a call: its slot, the value, and the row in which it was compared (None: it was not)."""

    slot: str
    value: Value
    row: Optional[Row]


class Value:
    """A tensor at one time. `source` is the value whose memory it shares without a recorded call in between."""

    __slots__ = (
        "agrees",
        "given",
        "is_small",
        "item",
        "maker",
        "memory",
        "place",
        "returned",
        "rows",
        "settled",
        "source",
        "taken",
        "uses",
        "views",
    )

    def __init__(self, place: int, item: Item, memory: object) -> None:
        self.place = place
        self.item = item
        self.memory = memory
        self.maker: Optional[Step] = None
        self.source: Optional[Value] = None
        self.views: list[Value] = []
        self.uses: list[Step] = []
        self.rows: list[Row] = []
        self.given: list[Part] = []
        self.taken: list[Step] = []
        self.agrees = False
        self.is_small = False
        self.settled = False
        self.returned = False
        """Whether what its gradient becomes agrees (the backward's `settled`)."""


class Step:
    """One call in the flow. `writes` are values that it makes in the memory of an argument; `inside` are the values
    made directly in it (a module with recorded calls)."""

    __slots__ = (
        "alone",
        "call",
        "gives",
        "has_other_arguments",
        "inside",
        "is_border",
        "match",
        "results",
        "takes",
        "writes",
    )

    def __init__(self, call: Call, match: Match, is_border: bool) -> None:
        self.call = call
        self.match = match
        self.alone = match.how == "unmatched"
        self.is_border = is_border
        self.has_other_arguments = False
        """Whether a plain argument differs."""
        self.takes: list[Part] = []
        self.results: list[Part] = []
        self.writes: list[Value] = []
        self.gives: list[Part] = []
        self.inside: list[Value] = []

    @property
    def is_matched(self) -> bool:
        """Whether it is a call with a counterpart; several calls may be matched with one of the other run."""
        both = self.match.target is not None and self.match.golden is not None
        return both and (self.call is self.match.target or self.call is self.match.golden)

    @property
    def effects(self) -> Iterator[Value]:
        yield from (part.value for part in self.results)
        yield from self.writes


class Graph:
    """The forward and the backward flow of one side. `has_identity`: value numbers were recorded."""

    def __init__(self, groups: Sequence[Group], golden: bool, has_identity: bool) -> None:
        self._golden = golden
        self.has_identity = has_identity
        self._known: dict[object, Value] = {}
        self._held: dict[object, Value] = {}
        self.values: list[Value] = []
        self.steps: dict[str, Step] = {}
        self.backward: dict[str, Step] = {}
        self.of_row: dict[int, Value] = {}
        self.written: dict[object, tuple[Value, Value]] = {}
        """Memory that was there before the first call and was written in place: its first and its last value."""
        self._external: dict[object, Value] = {}
        self.of_model: set[object] = set()
        self.of_updates: set[object] = set()
        """Memory of what is compared before and after its update."""
        """The memory of parameters and buffers, as far as it is known."""
        self._weights: dict[tuple[str, str], Value] = {}
        entries = list(self._entries(groups))
        parents = {call.parent for call, _, _ in entries}
        for (
            call,
            _,
            parts,
        ) in entries:  # a module is recorded when it returns, after calls that use views of its weights
            for slot, item, _ in parts if call.kind == "module" else ():
                if slot.startswith("parameters.") and item is not None and is_tensor(item):
                    self.of_model.add(self._meet(item).memory)
        for call, match, parts in entries:
            if call.direction == FORWARD or call.direction == "debug":
                self._add_forward(call, match, parts, call.kind == "module" and call.name in parents)
        self._link_unrecorded()
        for step in self.steps.values():
            self._add_to_border(step)
        for call, match, parts in entries:
            if call.direction == BACKWARD:
                self._add_backward(call, match, parts, call.kind == "module" and _inner(call, self.steps))
            elif call.direction == GRADS:
                self._add_gradients(call, parts)

    def _entries(self, groups: Sequence[Group]) -> Iterator[tuple[Call, Match, list[tuple[str, Item, Optional[Row]]]]]:
        """The calls of this side in their own order, with every item and its row."""
        found: list[tuple[Call, Match, list[tuple[str, Item, Optional[Row]]]]] = []
        for match, rows in groups:
            call = match.golden if self._golden else match.target
            if match.splits_golden == self._golden:
                for earlier in match.before:
                    found.append((earlier, match, [(slot, item, None) for slot, item in slots(earlier)]))
            if call is None:
                continue
            parts: list[tuple[str, Item, Optional[Row]]] = [
                (row.golden_slot, row.golden, row) if self._golden else (row.slot, row.target, row) for row in rows
            ]
            if match.how == "fused":
                seen = {slot for slot, _, _ in parts}
                parts += [(slot, item, None) for slot, item in slots(call) if slot not in seen]
            found.append((call, match, parts))
        found.sort(key=lambda entry: entry[0].order)
        yield from found

    def _value(self, item: dict[str, Any], backward: bool = False) -> Value:
        memory = item.get("memory") if self.has_identity else None
        number = item.get("value_id") if self.has_identity else None
        key: object = ("id", number) if isinstance(number, int) else _same_numbers(item, backward)
        if key is not None and key in self._known:
            return self._known[key]
        value = Value(len(self.values), item, memory if isinstance(memory, int) else None)
        self.values.append(value)
        if key is not None:
            self._known[key] = value
        return value

    def _meet(self, item: dict[str, Any]) -> Value:
        """The value of an argument. One that no recorded call made comes from the last value in its memory."""
        before = len(self.values)
        value = self._value(item)
        if value.place == before and value.memory is not None:
            value.source = self._held.get(value.memory)
            if value.source is None:
                self._external[value.memory] = value
            else:
                value.source.views.append(value)
            self._held.setdefault(value.memory, value)
        elif value.place == before:
            self._external[value] = value
        return value

    def _add_forward(
        self, call: Call, match: Match, parts: list[tuple[str, Item, Optional[Row]]], border: bool
    ) -> None:
        step = self.steps[call.name] = Step(call, match, border)
        for slot, item, row in parts:
            if not slot.startswith(("input", "parameters")):
                continue
            if item is None or not is_tensor(item):
                step.has_other_arguments |= row is not None and row.judgement.verdict in (WARNING, ERROR)
                continue
            # What a parameter was before its update is compared at the end of the step.
            value = self._value(item) if is_derived(call.key) and slot.endswith(".before") else self._meet(item)
            step.takes.append(Part(slot, value, row))
            if not border:
                value.uses.append(step)
            if slot.startswith("parameters."):
                self._weights.setdefault((call.key, slot.partition(".")[2]), value)
            self._keep(value, row)
        known = {part.value for part in step.takes}
        for slot, item, row in parts:
            if item is None or not is_tensor(item) or slot.startswith(("input", "parameters")):
                continue
            value = self._meet(item) if border or is_derived(call.key) else self._value(item)
            step.results.append(Part(slot, value, row))
            self._keep(value, row)
            if is_derived(call.key):
                self.of_model.add(value.memory)
                self.of_updates.add(value.memory)
            if value.maker is None and value not in known and value.source is None:
                value.maker = step
                if value.memory is not None:
                    self._held[value.memory] = value
        if not border and (writes_first(call.key) or _writes_statistics(step, parts) or _is_told_to_write(step, parts)):
            self._add_writes(step)

    def _add_writes(self, step: Step) -> None:
        """The values that a call makes in the memory of its arguments: its results there, or values nobody recorded."""
        if keeps_statistics(step.call.key):
            targets = [part for part in step.takes if part.slot.rpartition(".")[2] in _STATISTICS]
        elif word_of(step.call.key).startswith("_fused_"):
            targets = [part for part in step.takes if part.slot.count(".") > 1]
        else:
            targets = [part for part in step.takes if part.slot == "input.0" or part.slot.startswith("input.0.")]
        made = [] if keeps_statistics(step.call.key) else [part.value for part in step.results]
        for place, part in enumerate(targets):
            old = part.value
            new = (
                next((value for value in made if value.memory == old.memory), None) if old.memory is not None else None
            )
            if new is None and old.memory is None and place < len(made) and len(made) == len(targets):
                new = made[place]
            if new is None:
                new = Value(len(self.values), None, old.memory)
                new.maker = step
                self.values.append(new)
            if new not in made:
                step.writes.append(new)
            if old.memory is not None:
                self._held[old.memory] = new
            key: object = old.memory if old.memory is not None else old
            if key in self._external:
                self.written[key] = (self._external[key], new)
                if old.memory is None:  # without memory numbers, the chain of values is followed
                    self._external[new] = self._external.pop(key)
                    self.written[new] = (self._external[new], new)
                    self.written.pop(key, None)

    def _link_unrecorded(self) -> None:
        """A tensor that needs a gradient, that no recorded call made, and that is no parameter: unrecorded code (an
        index) made it from a result of the model. If only one result can be it, it is taken for a view of it."""
        for value in self.values if self.has_identity else ():
            needs = (value.item or {}).get("requires_grad") and value.memory not in self.of_updates
            if needs and value.maker is None and value.source is None:
                made = self.before(value)
                if made is not None and made.place < value.place:
                    value.source = made
                    made.views.append(value)

    def before(self, value: Value) -> Optional[Value]:
        """What a value that no recorded call made comes from: the value whose memory it shares; else, if unrecorded
        code (an index, a copy) may be between, the last result in the modules around that no call uses and that has its
        numbers in its range."""
        if value.source is not None or value.maker is not None or not value.uses or value.memory in self.of_model:
            return value.source
        reader = min((step.call for step in value.uses), key=lambda call: call.order)
        around, outer = {reader.parent}, self.steps.get(reader.parent or "")
        while outer is not None:
            around.add(outer.call.parent)
            outer = self.steps.get(outer.call.parent or "")
        for step in reversed(self.steps.values()):
            if step.call.order < reader.order and step.call.parent in around and not step.is_border:
                for part in step.results:
                    made = part.value
                    if made.maker is step and not made.uses and not made.views and _holds(made.item, value.item):
                        return made
        return None

    def backward_of(self, step: Step) -> Optional[Step]:
        """The backward of a call, if it was given a gradient."""
        call = step.call
        name = f"{call.key}.backward.{call.number}" if call.kind == "module" else f"{call.key}.{call.number}.backward"
        return self.backward.get(name)

    def by_number(self, number: int) -> Optional[Value]:
        """The value with this number, if a record has it."""
        return self._known.get(("id", number))

    def last_writer(self, memory: object) -> Optional[Step]:
        """The recorded call that wrote this memory last."""
        return next((one.maker for one in reversed(self.values) if one.memory == memory and one.maker), None)

    def _keep(self, value: Value, row: Optional[Row]) -> None:
        if row is not None:
            value.rows.append(row)
            self.of_row[id(row)] = value

    def _add_to_border(self, step: Step) -> None:
        around = self.steps.get(step.call.parent or "")
        if around is not None:
            around.inside += [part.value for part in step.results] + step.writes

    def _add_backward(
        self, call: Call, match: Match, parts: list[tuple[str, Item, Optional[Row]]], border: bool
    ) -> None:
        step = self.backward[call.name] = Step(call, match, border)
        forward = self.steps.get(forward_name(call))
        made = [part.value for part in forward.results] if forward is not None else []
        given = [part.value for part in forward.takes if part.slot.startswith("input")] if forward is not None else []
        for slot, item, row in parts:
            place = _number(slot)
            if item is None or not is_tensor(item):
                continue
            if slot.startswith("input"):
                value = made[place] if place < len(made) else self._value(item, backward=True)
                step.takes.append(Part(slot, value, row))
                if not border:
                    value.taken.append(step)
            else:
                value = given[place] if place < len(given) else self._value(item, backward=True)
                part = Part(slot, value, row)
                step.gives.append(part)
                if not border:
                    value.given.append(part)

    def _add_gradients(self, call: Call, parts: list[tuple[str, Item, Optional[Row]]]) -> None:
        """The complete gradient of a parameter: what arrives for its value ends here."""
        step = self.backward[call.name] = Step(call, Match(None, None, "unmatched", 0.0), False)
        for slot, item, row in parts:
            if item is None or not is_tensor(item):
                continue
            name = slot.removeprefix("parameters_grad.").split(".")[0]
            value = self._weights.get((call.key, name))
            if value is not None:
                part = Part(slot, value, row)
                step.takes.append(part)
                value.taken.append(step)


def _same_numbers(item: dict[str, Any], backward: bool) -> object:
    """Equal within one run only for the same numbers: all statistics, exactly."""
    found = tuple(item.get(key) for key in ("Max", "Min", "Mean", "Norm", "md5"))
    return None if all(one is None for one in found) else (backward, count(item), *map(str, found))


def _holds(made: Item, taken: Item) -> bool:
    """Whether elements of a float tensor may be elements of the other. One that needs a gradient comes from one that
    does."""
    if made is None or taken is None or made.get("dtype") != taken.get("dtype"):
        return False
    if taken.get("requires_grad") and not made.get("requires_grad"):
        return False
    ends = [number(item.get(key)) for key in ("Min", "Max") for item in (made, taken)]
    if None in ends or epsilon(made) == 0.0:
        return False
    low, lowest, high, highest = ends
    return low <= lowest and highest <= high  # type: ignore[operator]


_STATISTICS = frozenset(["running_mean", "running_var", "1", "2"])
_IN_TRAINING = frozenset(["input.training", "input.use_input_stats", "input.5"])


def _writes_statistics(step: Step, parts: list[tuple[str, Item, Optional[Row]]]) -> bool:
    """Whether a normalisation updates the running statistics that it is given: in evaluation it only reads them."""
    given = ((item or {}).get("value") for slot, item, _ in parts if slot in _IN_TRAINING)
    return keeps_statistics(step.call.key) and False not in given


def _is_told_to_write(step: Step, parts: list[tuple[str, Item, Optional[Row]]]) -> bool:
    """Whether a flag (`inplace=True`) makes the call write its first argument: its result is in the same memory."""
    if not step.takes or not step.results:
        return False
    given, made = step.takes[0].value, step.results[0].value
    if made.memory is None or made.memory != given.memory or made is given:
        return False
    same = (made.item or {}).get("shape") == (given.item or {}).get("shape")
    return same and any((item or {}).get("value") is True for _, item, _ in parts)


def _inner(call: Call, steps: dict[str, Step]) -> bool:
    forward = steps.get(forward_name(call))
    return forward is not None and forward.is_border


def _number(slot: str) -> int:
    """`output.2` -> 2, `output.2.0` -> 2: gradients are numbered by the tensors of the forward."""
    for part in slot.split(".")[1:]:
        if part.isdigit():
            return int(part)
    return 1 << 30
