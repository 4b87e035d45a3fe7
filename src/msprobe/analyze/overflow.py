"""`msprobe overflow`: finds the call that produced the first NaN or infinity, over the steps and ranks of a dump.

It reads any dump with statistics, of msprobe or of mindstudio-probe. It uses the rules of overflow_check: a call with
finite inputs and an output that is not finite is a producer; a call that only passes an infinity on is not. If a rank
received the infinity through a collective, it looks at the rank that sent it. A producer whose infinity was discarded
is named only if no other infinity spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

from msprobe.analyze.discarded import find_discarded
from msprobe.analyze.overflow_event import Event
from msprobe.dump import record_keys
from msprobe.dump.collectives import RECEIVES, SENDS, is_collective
from msprobe.dump.errors import DumpError
from msprobe.dump.items import read_number
from msprobe.dump.names import BACKWARD, FORWARD, PARAMETERS_GRAD, Name, callee_of, forward_of, is_module, parse_name
from msprobe.dump.reader import RankDump, leaves
from msprobe.dump.stack_frames import source_line
from msprobe.messages import Message
from msprobe.stats.finiteness import FINITE, INFINITE, NAN
from msprobe.stats.own_infinities import MOVES, TURNS

_NUMBERS = ("Max", "Min", "Mean", "Norm")


@dataclass(frozen=True)
class OverflowAnalysis:
    """The result of the analysis of a dump. `judged` counts the records that had statistics."""

    overflows: list[Event]
    producer: Optional[Event]
    inside_collective: bool
    judged: int
    notes: list[str]

    @property
    def sentence(self) -> Message:
        if not self.overflows:
            return Message("overflow.none")
        if self.producer is None:
            return Message("overflow.no_producer")
        id = "overflow.producer_infinite" if self.producer.given == INFINITE else "overflow.producer"
        return Message(id, call=self.producer.name, place=self.producer.label)


_PRODUCT_NAMES = """
mul mul_ __mul__ __rmul__ __imul__ multiply div div_ __truediv__ __itruediv__ divide true_divide matmul __matmul__ mm
bmm linear dot mv Mul Div RealDiv MatMul BatchMatMul
"""
_PRODUCTS = frozenset(_PRODUCT_NAMES.split())
"""Those of TURNS that keep the sign of an infinity if the other factors are not negative."""


def analyse(ranks: list[RankDump]) -> OverflowAnalysis:
    overflows: list[Event] = []
    notes: list[str] = []
    unread: list[DumpError] = []
    judged = 0
    producer: Optional[Event] = None
    inside = False
    made_infinity: dict[Optional[int], bool] = {}
    for step in dict.fromkeys(rank.step for rank in ranks):
        events: list[Event] = []
        for rank in (replace(one) for one in ranks if one.step == step):
            try:
                seen, count = _judge(rank, made_infinity)
            except DumpError as error:
                unread.append(error)
                continue
            judged += count
            notes += [Message("note.sentence_at", place=rank.label, text=trouble) for trouble in rank.troubles]
            events += seen
        overflows += [event for event in events if event.overflow]
        if producer is None or producer.discarded:
            found, within = find_first(events)
            if producer is None or (found is not None and not found.discarded):
                producer, inside = found, within
    if len(unread) == len(ranks) > 0:
        raise unread[0]
    return OverflowAnalysis(overflows, producer, inside, judged, [*notes, *map(str, unread)])


def find_first(events: list[Event]) -> tuple[Optional[Event], bool]:
    """The first producer of one step, and whether it is a collective that received finite values on every rank."""
    local = [event for event in events if event.overflow and event.producer and event.collective is None]
    for event in events:
        if event.collective is None or not event.overflow or event.given != FINITE:
            continue
        partners = [other for other in events if other is not event and other.collective == event.collective]
        if not any(partner.given != FINITE for partner in partners) and not _sender_had_it(event, events):
            local.append(event)
    local = [event for event in local if not event.discarded] or local
    best = min(local, key=lambda event: (event.epoch, event.position, event.rank or 0), default=None)
    if best is not None and best.collective is not None:
        # A dump of overflow_check has no clean collectives: a producer that is a plain call explains this one.
        plain = [event for event in local if event.collective is None and event.position <= best.position]
        best = min(plain, key=lambda event: event.position) if plain else best
    return best, best is not None and best.collective is not None


def _sender_had_it(event: Event, events: list[Event]) -> bool:
    """Whether a receive got NaN or infinity that its sender already had as input."""
    key = event.collective
    if key is None or key[0] != "point to point" or event.rank != key[2]:
        return False
    return any(other.collective == key and other.rank == key[1] and other.given != FINITE for other in events)


def _judge(rank: RankDump, made_infinity: dict[Optional[int], bool]) -> tuple[list[Event], int]:
    """The events of one rank and step, and the number of records with statistics. A discarded infinity is no reason to
    suspect infinities that the script passes in later (masks): the second pass ignores it."""
    before = dict(made_infinity)
    events, count = _events(rank, made_infinity, {})
    discarded = find_discarded(events, rank.construct, lambda name: _is_finite(rank.records.get(name)))
    if discarded:
        made_infinity.clear()
        made_infinity.update(before)
        events, count = _events(rank, made_infinity, discarded)
    return events, count


def _is_finite(record: Optional[dict[str, Any]]) -> bool:
    outputs = _read_states(record)[1] if record is not None else []
    return bool(outputs) and all(state == FINITE for _, state in outputs)


def _events(
    rank: RankDump, made_infinity: dict[Optional[int], bool], discarded: Mapping[str, str]
) -> tuple[list[Event], int]:
    events: list[Event] = []
    judged = epoch = 0
    bad_forwards: set[str] = set()
    order: dict[object, int] = {}
    sparse = rank.head.get("task") == "overflow_check"
    children: set[str] = set()
    construct = rank.construct
    for position, (name, record) in enumerate(rank.records.items()):
        given, outputs, numbers = _read_states(record)
        judged += numbers
        found = max((state for _, state in outputs), default=FINITE)
        collective = None
        parsed = parse_name(name)
        if parsed.direction == FORWARD and is_collective(parsed.key):
            epoch += 1
            collective = _exchange_key(parsed, record, rank.rank, order, sparse)
        if found == FINITE and collective is None:
            continue
        handed_in = given == INFINITE and not made_infinity.get(rank.rank, False) and not _makes_own(name, record)
        overflow = found != FINITE and not (handed_in and found == INFINITE)
        own = given == INFINITE and not handed_in and not made_infinity.get(rank.rank, False)
        producer = overflow and (given == FINITE or handed_in or own) and name not in children
        if producer and forward_of(name) in bad_forwards:
            producer = False
        if parsed.direction == PARAMETERS_GRAD and any(event.overflow for event in events):
            producer = False
        role = record.get(record_keys.OVERFLOW)
        if role in ("producer", "propagator"):
            overflow, producer = True, role == "producer"
        if overflow:
            bad_forwards.add(name)
            above = construct.get(name)
            while above is not None and above not in children:
                children.add(above)
                above = construct.get(above)
            if found == INFINITE and parsed.direction != BACKWARD and name not in discarded:
                made_infinity[rank.rank] = True
        if not overflow and collective is None:
            continue
        frames = rank.stacks.get(name) or rank.stacks.get(forward_of(name)) or []
        slots = tuple(slot for slot, state in outputs if state != FINITE)
        module = name if is_module(name) else construct.get(name)
        events.append(
            Event(
                rank.step, rank.rank, rank.label, name, position, epoch, given, found, producer, overflow, slots,
                collective, module, source_line(frames), discarded.get(name, ""),
            )
        )  # fmt: skip
    return events, judged


def _read_states(record: dict[str, Any]) -> tuple[int, list[tuple[str, int]], bool]:
    """The worst state of the inputs of a call, the state of each output, and whether the record has any statistics."""
    given, outputs, numbers = FINITE, [], False
    for key, value in record.items():
        if key in record_keys.FOR_REPLAY:
            continue
        receives = key in record_keys.RECEIVED
        for slot, leaf in leaves(key, value):
            state = _state(leaf)
            if state is None or slot.split(".")[:2] == [record_keys.INPUT_KWARGS, "out"]:  # `out` is only written
                continue
            numbers = numbers or "dtype" in leaf
            if receives:
                given = max(given, state)
            elif "dtype" in leaf:
                outputs.append((slot, state))
    return given, outputs, numbers


def _makes_own(name: str, record: dict[str, Any]) -> bool:
    """Whether a call with infinities of one sign in its inputs returned the other sign. Statistics show no more than
    that."""
    api = callee_of(name)
    if api in MOVES or not name.endswith(".forward"):
        return False
    given = [*_bounds("input_args", record), *_bounds("input_kwargs", record)]
    if api in TURNS and (api not in _PRODUCTS or _turns_product(given)):
        return False
    made = _infinities(_bounds("output", record))
    return bool(made - _infinities(given))


def _bounds(key: str, record: dict[str, Any]) -> list[tuple[float, float]]:
    """The least and the largest element of each tensor and number; without statistics, anything is possible."""
    found = []
    for slot, leaf in leaves(key, record.get(key)):
        if not isinstance(leaf, dict) or slot.split(".")[:2] == ["input_kwargs", "out"]:
            continue
        keys = ("Min", "Max") if "dtype" in leaf else ("value", "value")
        least, most = (_float(leaf.get(one)) for one in keys)
        if least is not None and most is not None:
            found.append((least, most))
        elif "dtype" in leaf:
            found.append((-math.nan, math.nan))
    return found


def _infinities(bounds: list[tuple[float, float]]) -> set[float]:
    return {number for pair in bounds for number in pair if math.isinf(number)}


def _turns_product(given: list[tuple[float, float]]) -> bool:
    """Whether a product may change the sign of an infinity in a factor: another factor may be negative."""
    infinite = [place for place, pair in enumerate(given) if any(map(math.isinf, pair))]
    return any(not least >= 0 for held in infinite for place, (least, _) in enumerate(given) if place != held)


def _state(leaf: Any) -> Optional[int]:
    """FINITE, INFINITE or NAN for a recorded tensor or number; None without statistics."""
    if not isinstance(leaf, dict):
        return None
    if "dtype" not in leaf:
        value = _float(leaf.get("value")) if leaf.get("type") == "float" else None
        return None if value is None else _worst([value])
    numbers = [number for key in _NUMBERS if (number := _float(leaf.get(key))) is not None]
    if not numbers:
        return None
    extremes = [number for key in ("Max", "Min") if (number := _float(leaf.get(key))) is not None]
    worst = _worst(extremes or numbers)
    if worst == FINITE and any(math.isnan(number) for number in numbers):
        return NAN
    return worst


def _worst(numbers: list[float]) -> int:
    if any(math.isnan(number) for number in numbers):
        return NAN
    return INFINITE if any(math.isinf(number) for number in numbers) else FINITE


def _float(value: Any) -> Optional[float]:
    """Some writers put NaN and infinity into quotes."""
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(value)
    return read_number(value)


def _exchange_key(
    name: Name, record: dict[str, Any], rank: Optional[int], order: dict[object, int], sparse: bool
) -> tuple[object, ...]:
    """The key that this call shares with its partners on other ranks: the group and the turn, or sender, receiver and
    turn."""
    api, number = name.key.rpartition(".")[2], name.number
    if api in SENDS or api in RECEIVES:
        other = _peer(record, api)
        pair = (rank, other) if api in SENDS else (other, rank)
        order[pair] = order.get(pair, -1) + 1
        return ("point to point", *pair, order[pair])
    group = tuple(_group(record))
    if sparse:  # clean calls are not listed: only the name shows the turn
        return (api, group, number)
    key = (api, group)
    order[key] = order.get(key, -1) + 1
    return (api, group, order[key])


def _group(record: dict[str, Any]) -> Iterator[object]:
    """PyTorch: the ranks of the group. MindSpore: the name of the group and of the reduction."""
    for key in (record_keys.INPUT_ARGS, record_keys.INPUT_KWARGS, record_keys.ATTRIBUTES):
        for _, leaf in leaves("", record.get(key)):
            if not isinstance(leaf, dict):
                continue
            ranks = leaf.get("group_ranks")
            if isinstance(ranks, list):
                yield from (one for one in ranks if isinstance(one, int))
            elif leaf.get("type") == "str":
                yield str(leaf.get("value"))


def _peer(record: dict[str, Any], api: str) -> Optional[int]:
    named = record.get(record_keys.INPUT_KWARGS) or {}
    listed = record.get(record_keys.INPUT_ARGS) or []
    keys = ("dst", "group_dst", "dst_rank") if api in SENDS else ("src", "group_src", "src_rank")
    given = next((named[key] for key in keys if key in named), listed[1] if len(listed) > 1 else None)
    value = given.get("value") if isinstance(given, dict) else given
    return value if isinstance(value, int) and not isinstance(value, bool) else None
