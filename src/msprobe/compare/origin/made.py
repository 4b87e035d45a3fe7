"""Where a value comes from that no recorded call produced, in both runs, and the first call that differs.

The collector records the views, indices and creations between the recorded calls (`made` in flow.json). If both runs
take the value in a different way, the answer says both ways and names the line of the first call that differs. Calls
that give the same elements in the same order count as one: reshapes by the shape that they lead to, permutations by
the order of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from msprobe.compare.calls import FORWARD, Match
from msprobe.compare.flow.graph import Value
from msprobe.compare.operators import draws
from msprobe.compare.origin.arguments import slot_text
from msprobe.compare.origin.source import Lines, user_frames, user_lines
from msprobe.compare.origin.trace import Trace, module_of
from msprobe.compare.origin.wording import Candidate, call_text
from msprobe.compare.phases import Phase, Stacks
from msprobe.compare.reasons import SIDES
from msprobe.compare.rows import Row
from msprobe.dump.made_values import MOST_LINKS, Held, Link, MadeValues, Source
from msprobe.dump.stack_frames import Frame, is_library
from msprobe.messages import Message

_LONGEST = 100
_SHAPED = ("view", "reshape", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "view_as", "reshape_as")
_RESHAPES = frozenset(_SHAPED)
_EXPANDS = frozenset(["expand", "expand_as", "broadcast_to"])
_SWAPS = frozenset(["transpose", "swapaxes", "swapdims"])
_SAME = frozenset(["detach", "requires_grad_", "alias", "conj"])
"""Calls that return the elements that they were given."""
_HELD = {"parameter": "made.parameter", "buffer": "made.buffer"}
_HANDED_ON = frozenset(["to", "cuda", "npu", "cpu", "pin_memory", "contiguous", "clone", "long", "float"])


Recorded = tuple[Optional[MadeValues], Optional[MadeValues]]


class Part(NamedTuple):
    """A call between the base and the value, and which of its results goes on."""

    link: Link
    shape: tuple[int, ...]
    place: int


class Way(NamedTuple):
    """How one run takes a value: from the result of a recorded call, a tensor of the model, or (`outside`) a tensor
    that no call of the step made; else the first part makes it from nothing. `whole`: nothing was left out."""

    parts: tuple[Part, ...]
    call: Optional[Match] = None
    name: str = ""
    held: Optional[Held] = None
    outside: bool = False
    whole: bool = True


def name_way(found: Candidate, trace: Trace, made: Recorded) -> Candidate:
    """The suspect, with how the two runs take the value that differs, if this is recorded and says more."""
    row = found.row
    if row is None or not row.is_input or found.kind not in ("input", "wiring", "gradient"):
        return found
    target, golden = (_way(row, trace, made[side], bool(side)) for side in (0, 1))
    if target is None or golden is None:
        return found
    if found.kind == "gradient":
        return _cut_off(found, target, golden)
    if (
        trace.phases[found.index] is Phase.AFTER
        or not (target.whole and golden.whole)
        or found.match.call.direction != FORWARD
    ):
        return found
    call = call_text(found.match.call, module_of(found.match.call, trace.groups, row))
    given = {"call": call, "slot": slot_text(row.match.call, row.slot)}
    first, kept = _different(target, golden)
    if first is not None:
        return _taken_differently(found, given, (target, golden), first, trace.stacks)
    return found if kept else _same_way(found, given, target, golden, trace)


def _taken_differently(
    found: Candidate, given: dict[str, str], ways: tuple[Way, Way], first: tuple[int, int], stacks: Stacks
) -> Candidate:
    texts = [_text(way) for way in ways]
    if max(map(len, texts)) > _LONGEST or texts[0] == texts[1]:
        texts = [_text(way, place) for way, place in zip(ways, first)]
    frames = [_frame(way, place) for way, place in zip(ways, first)]
    id = "made.order" if found.said is not None and found.said.id.startswith("order.") else "made.differs"
    said = Message(id, target=texts[0], golden=texts[1], **given)
    lines = _lines(*frames)
    if any(lines):  # a run that makes no such call has the line where it takes the value as it is
        own = user_lines(stacks, found.match)
        lines = lines[0] or own[0], lines[1] or own[1]
    return replace(found, said=said, lines=lines, evidence=(*_evidence(frames), *found.evidence))


def _same_way(found: Candidate, given: dict[str, str], target: Way, golden: Way, trace: Trace) -> Candidate:
    """Both runs take it in the same way: what they take it from differs."""
    frames = [_frame(way, 0) for way in (target, golden)]
    lines, evidence = _lines(*frames), _evidence(frames)
    if target.held is not None and golden.held is not None:
        made = [way.held.made if way.held is not None else None for way in (target, golden)]
        what = Message(_HELD.get(target.held.kind, "made.attribute"), name=target.held.name)
        said = Message("made.held", what=what, **given)
        ours, theirs = (None if frame is None else _line(frame) for frame in made)
        return replace(found, kind="buffer", said=said, made=(ours, theirs), evidence=(*evidence, *found.evidence))
    if target.outside and golden.outside:
        if not target.parts:
            evidence = _evidence(user_frames(trace.stacks, found.match))
        names = _passed_as(found.row, trace)
        said = Message("made.outside_as", names=names, **given) if names else Message("made.outside", **given)
        return replace(found, said=said, evidence=(*evidence, *found.evidence))
    if target.call is not None or golden.call is not None or not target.parts:
        return found
    if draws(target.parts[0].link.api):
        said = Message("made.random", made=_text(target), **given)
        return replace(found, kind="random", said=said, lines=lines, evidence=(*evidence, *found.evidence))
    said = Message("made.same", made=_text(target), **given)
    return replace(found, said=said, lines=lines, evidence=(*evidence, *found.evidence))


def _cut_off(found: Candidate, target: Way, golden: Way) -> Candidate:
    """The `detach` that one run alone calls."""
    calls = [[part for part in way.parts if _word(part.link) == "detach"] for way in (target, golden)]
    for golden_only, (here, there) in enumerate((calls, calls[::-1])):
        if here and not there:
            frame = here[0].link.frame
            said = Message("made.detached", side=list(SIDES.values())[golden_only], line=_line(frame))
            one = f"{frame.file}:{frame.line} in {frame.function}" if _is_own(frame) else None
            lines: Lines = (None, one) if golden_only else (one, None)
            return replace(found, lines=lines, evidence=(said, *found.evidence))
    return found


# How one run takes a value.


def _way(row: Row, trace: Trace, made: Optional[MadeValues], golden: bool) -> Optional[Way]:
    facts = trace.facts
    if facts is None or made is None:
        return None
    value = facts.sides[golden].graph.of_row.get(id(row))
    call = row.match.golden if golden else row.match.target
    if value is None or call is None:
        return None
    slots = [f"{call.name}.{row.golden_slot if golden else row.slot}"]
    slots += [f"{step.call.name}.{part.slot}" for step in value.uses for part in step.takes if part.value is value]
    source = next((made.slots[slot] for slot in slots if slot in made.slots), None)
    parts: list[Part] = []
    while source is not None and source.value is not None and len(parts) <= MOST_LINKS:
        one = made.values[source.value]
        parts.append(Part(one.link, one.shape, source.part))
        if not one.sources:
            return Way(tuple(reversed(parts)))
        source = one.sources[0]
    return _base(tuple(reversed(parts)), source, value, made, trace, golden)


def _base(
    parts: tuple[Part, ...], source: Optional[Source], value: Value, made: MadeValues, trace: Trace, golden: bool
) -> Way:
    """What the first of these calls takes, or the value itself if there are none."""
    assert trace.facts is not None
    if source is not None and source.value is not None:
        return Way(parts, whole=False)
    graph = trace.facts.sides[golden].graph
    taken: Optional[Value] = value
    if source is not None and source.id is not None:
        taken = graph.by_number(source.id) or value
    memory: object = value.memory if source is None or source.memory is None else source.memory
    while taken is not None and taken.maker is None:
        taken = taken.source
    if taken is not None and taken.maker is not None:
        return Way(parts, call=taken.maker.match, name=taken.maker.call.name)
    if isinstance(memory, int) and memory in made.held:
        return Way(parts, held=made.held[memory])
    if parts and source is None:
        return Way(parts, whole=False)
    return Way(parts, outside=True, whole=made.complete and isinstance(memory, int))


# What differs.


def _different(target: Way, golden: Way) -> tuple[Optional[tuple[int, int]], bool]:
    """The places of the first calls that differ; and, if there are none, whether both take the results of different
    recorded calls, about which other sentences say more."""
    if target.call is not None and golden.call is not None and target.call is not golden.call:
        return None, True
    bases = [
        (way.call is not None, way.held and (way.held.name, way.held.kind), way.outside) for way in (target, golden)
    ]
    ours, theirs = (list(_keys(way.parts)) for way in (target, golden))
    if bases[0] != bases[1]:
        return (0, 0), False
    for (mine, place), (other, there) in zip(ours, theirs):
        if mine != other:
            return (place, there), False
    if len(ours) == len(theirs):
        return None, False
    longer = ours if len(ours) > len(theirs) else theirs
    place = longer[min(len(ours), len(theirs))][1]
    ends = len(target.parts), len(golden.parts)
    return (place if longer is ours else ends[0], place if longer is theirs else ends[1]), False


def _keys(parts: Sequence[Part]) -> Iterator[tuple[object, int]]:
    """What each call does, and its place; calls that only change the shape count as one."""
    place = 0
    while place < len(parts):
        first, word = place, _word(parts[place].link)
        if word in _RESHAPES:
            while place + 1 < len(parts) and _word(parts[place + 1].link) in _RESHAPES | _SAME:
                place += 1
            yield ("reshape", parts[place].shape), first
        elif word in _EXPANDS:
            yield ("expand", parts[place].shape), first
        elif word not in _SAME:
            part = parts[place]
            order = _permutation(word, part)
            yield (word, part.link.args, part.place) if order is None else ("permute", order), first
        place += 1


def _permutation(word: str, part: Part) -> Optional[tuple[int, ...]]:
    """The order of dimensions that a call gives."""
    number = len(part.shape)
    order = list(range(number))
    if word in ("T", "mT", "t") and number == 2:
        return (1, 0)
    try:
        given = [int(one) for one in part.link.args.strip("()[]").split(",") if one.strip()]
        if word == "permute" and len(given) == number:
            return tuple(one % number for one in given)
        if word in _SWAPS and len(given) == 2:
            one, other = given[0] % number, given[1] % number
            order[one], order[other] = order[other], order[one]
            return tuple(order)
    except (ValueError, ZeroDivisionError, IndexError):
        pass
    return None


def _word(link: Link) -> str:
    return link.api.rpartition(".")[2]


# Words.


def _text(way: Way, shown: int = -1) -> str:
    """`torch.arange(1, 8)[None, :]`, `rope.table[:7]`; with `shown` only this call and what it takes."""
    base: str = way.held.name if way.held is not None else way.name
    if way.outside:
        base = Message("made.tensor")
    parts = list(enumerate(way.parts))
    shown = min(shown, len(parts) - 1)
    left_out = "…" if shown > 0 else ""
    if shown >= 0:
        base = "" if shown > 0 else base
        parts = parts[shown : shown + 1]
    code = left_out + "".join(_part_text(part, bool(base) or place > 0) for place, part in parts)
    if 0 <= shown < len(way.parts) - 1:
        code += "…"
    if not code:
        return base or Message("made.nothing")
    return Message("made.code", what=base, code=code) if isinstance(base, Message) else f"{base}{code}"


def _part_text(part: Part, follows: bool) -> str:
    word, args = _word(part.link), part.link.args
    if word == "__getitem__":
        inner = args[1:-1] if args.startswith("(") and args.endswith(")") else args
        return f"[{inner}]"
    name = f".{word}" if follows else part.link.api
    place = f"[{part.place}]" if part.place >= 0 else ""
    return f"{name}({args}){place}"


def _frame(way: Way, place: int) -> Optional[Frame]:
    return way.parts[place].link.frame if place < len(way.parts) else None


def _is_own(frame: Optional[Frame]) -> bool:
    return frame is not None and not is_library(frame.file)


def _lines(target: Optional[Frame], golden: Optional[Frame]) -> Lines:
    """The lines as the source of the answer, if both are the user's own."""
    known = [frame for frame in (target, golden) if frame is not None]
    if not known or not all(map(_is_own, known)):
        return None, None
    ours, theirs = (None if one is None else f"{one.file}:{one.line} in {one.function}" for one in (target, golden))
    return ours, theirs


def _line(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}" + (f": {frame.text}" if frame.text else "")


def _evidence(frames: Sequence[Optional[Frame]]) -> tuple[Message, ...]:
    """The lines with their text: one, if both runs have the same."""
    target, golden = frames
    if target is not None and golden is not None and target.text and target.text == golden.text:
        return (Message("made.at", line=_line(target)),)
    sides = zip(SIDES.values(), frames)
    return tuple(Message("made.at_side", side=side, line=_line(frame)) for side, frame in sides if frame is not None)


def _passed_as(row: Optional[Row], trace: Trace) -> list[str]:
    """The name under which a module receives the value: `labels of Module.Bert`."""
    assert trace.facts is not None
    graph = trace.facts.sides[False].graph
    value = graph.of_row.get(id(row))
    if value is None:
        return []
    values = [value]
    for step in value.uses:
        if _last(step.call.key) in _HANDED_ON:
            values += [part.value for part in step.results]
    found: list[str] = []
    for step in graph.steps.values():  # an outer module comes after those inside
        for part in step.takes if step.call.kind == "module" else ():
            name = part.slot.partition(".")[2]
            if part.slot.startswith("input.") and part.value in values and not name[-1:].isdigit():
                found = [Message("of", part=name, whole=step.call.key)]
    return found


def _last(key: str) -> str:
    return key.rpartition(".")[2]
