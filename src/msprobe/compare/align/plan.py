"""Finds which call of one run corresponds to which call of the other, from names, records and the module tree.

Each match says how it was made and how sure it is, because comparing the wrong two calls is worse than comparing none.
Start with `plan`. Nothing here reads a tensor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Optional

from msprobe.compare.align.sequence import common_order
from msprobe.compare.align.translate import Translation
from msprobe.compare.align.tree import align_tree
from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match, fingerprint, shapes

MODES = ("auto", "exact", "fuzzy")
_RECOMPUTED = "recomputed"

Calls = Sequence[Call]
KeyOf = Callable[[Call], str]


def plan(
    target: Calls,
    golden: Calls,
    mode: str = "auto",
    translation: Optional[Translation] = None,
    of_parts: bool = False,
) -> list[Match]:
    """Returns every call of both sides once, in the execution order of the target. A call that only the golden run has
    follows its golden predecessor.

    `auto` matches equal names if the two runs made the same calls in the same order; if not, it aligns the two
    sequences inside the module tree. `exact` matches equal names only. `fuzzy` ignores the numbers in names.
    `of_parts`: one of the runs has parts of tensors, so that shapes do not show which calls correspond.
    """
    translation = (translation or Translation()).knowing(target)
    if translation.plain and [c.name for c in target] == [c.name for c in golden]:
        return [Match(t, g, "exact", 1.0) for t, g in zip(target, golden)]
    matches = _by_data_mapping(target, golden, translation)
    ours, theirs = _lanes(_without(target, matches, 0)), _lanes(_without(golden, matches, 1))
    if mode == "exact":
        for lane in {**ours, **theirs}:
            matches += _by_recount(ours[lane], theirs[lane], translation, lane)
    elif mode == "fuzzy":
        for lane in {**ours, **theirs}:
            matches += _by_order(ours[lane], theirs[lane], translation, "fuzzy")
    else:
        forward = _forward(ours[FORWARD], theirs[FORWARD], translation, of_parts)
        matches += forward
        recomputed = bool(ours[_RECOMPUTED] or theirs[_RECOMPUTED])
        matches += _by_order(ours[_RECOMPUTED], theirs[_RECOMPUTED], translation, "recount")
        matches += _backward(ours[BACKWARD], theirs[BACKWARD], forward, recomputed, translation)
        matches += _gradients(ours[GRADS], theirs[GRADS], forward, translation)
        for lane in {**ours, **theirs}:
            if lane not in (FORWARD, BACKWARD, GRADS, _RECOMPUTED):
                matches += _by_recount(ours[lane], theirs[lane], translation, lane)
    return _in_order(matches, target, golden)


def _lanes(calls: Calls) -> dict[str, list[Call]]:
    lanes: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        lane = _RECOMPUTED if call.recompute and call.direction == FORWARD else call.direction
        lanes[lane].append(call)
    return lanes


def _without(calls: Calls, matches: list[Match], side: int) -> list[Call]:
    if not matches:
        return list(calls)
    sides = [match.golden if side else match.target for match in matches]
    taken = {call.name for call in sides if call is not None}
    return [call for call in calls if call.name not in taken]


def _by_data_mapping(target: Calls, golden: Calls, translation: Translation) -> list[Match]:
    if not translation.calls:
        return []
    known = {call.name: call for call in golden}
    return [
        Match(call, known[translation.calls[call.name]], "mapping", 1.0)
        for call in target
        if translation.calls.get(call.name) in known
    ]


def _by_recount(target: Calls, golden: Calls, translation: Translation, lane: str) -> list[Match]:
    """Equal keys, the n-th with the n-th: names as they are, except for the numbers of recomputed calls.

    If nothing was recomputed, the numbers are those of the names: a call that one side lacks then leaves a gap and does
    not shift the others.
    """
    recount = lane in (BACKWARD, _RECOMPUTED)
    waiting = dict(_numbered(golden, translation.golden_key, recount))
    matches = []
    for identity, call in _numbered(target, translation.target_key, recount):
        partner = waiting.get(identity)
        if partner is not None:
            matches.append(_match(call, partner, "recount", translation))
    return matches


def _numbered(calls: Calls, key_of: KeyOf, recount: bool) -> list[tuple[tuple[str, int], Call]]:
    seen: dict[str, int] = defaultdict(int)
    numbered = []
    for call in calls:
        key = key_of(call)
        numbered.append(((key, seen[key] if recount else call.number), call))
        seen[key] += 1
    return numbered


def _match(target: Call, golden: Call, how: str, translation: Translation) -> Match:
    if target.name == golden.name:
        return Match(target, golden, "exact", 1.0)
    if how == "recount" and target.key != golden.key:
        return Match(target, golden, "mapping", 0.95)
    return Match(target, golden, how, 0.95 if how == "recount" else 0.8)


def _by_order(target: Calls, golden: Calls, translation: Translation, how: str) -> list[Match]:
    """The same keys in the same order, numbers ignored."""
    ours = [translation.target_key(call) for call in target]
    theirs = [translation.golden_key(call) for call in golden]
    return [_match(target[i], golden[j], how, translation) for i, j in common_order(ours, theirs)]


def _forward(target: Calls, golden: Calls, translation: Translation, of_parts: bool) -> list[Match]:
    ours = [translation.target_key(call) for call in target]
    theirs = [translation.golden_key(call) for call in golden]
    if ours == theirs:
        return [_match(t, g, "recount", translation) for t, g in zip(target, golden)]
    return align_tree(target, golden, translation, of_parts)


def _backward(
    target: Calls, golden: Calls, forward: list[Match], recomputed: bool, translation: Translation
) -> list[Match]:
    """A backward belongs to its forward. With recomputation, numbers do not show this, and the n-th belongs to the
    n-th. The backward of a fused call and those of the calls that it replaces have no items in common: they stay
    unmatched."""
    if recomputed:
        return _by_recount(*_alike_often(target, golden, translation), translation, BACKWARD)
    partner = {
        (m.target.key, m.target.number): (m.golden.key, m.golden.number, m.how, m.confidence)
        for m in forward
        if m.target and m.golden and m.how != "fused"
    }
    partnered = {(key, number) for key, number, _, _ in partner.values()}
    known = {(call.key, call.number): call for call in golden}
    matches = []
    loose_target = []
    for call in target:
        to = partner.get((call.key, call.number))
        if to is None:
            loose_target.append(call)
        elif to[:2] in known:
            matches.append(Match(call, known[to[:2]], to[2], to[3]))
    loose_golden = [call for call in golden if (call.key, call.number) not in partnered]
    if loose_target and loose_golden and not forward:
        matches += _by_order(loose_target, loose_golden, translation, "sequence")
    return matches


def _alike_often(target: Calls, golden: Calls, translation: Translation) -> tuple[list[Call], list[Call]]:
    """The calls of APIs that both sides call equally often; of the other APIs, the calls with the same values."""
    ours = Counter(translation.target_key(call) for call in target)
    theirs = Counter(translation.golden_key(call) for call in golden)
    values = [
        Counter((key_of(call), fingerprint(call.record)) for call in calls)
        for calls, key_of in ((target, translation.target_key), (golden, translation.golden_key))
    ]

    def fits(call: Call, key: str) -> bool:
        seen = (key, fingerprint(call.record))
        return ours[key] == theirs[key] or values[0][seen] == values[1][seen]

    return (
        [call for call in target if fits(call, translation.target_key(call))],
        [call for call in golden if fits(call, translation.golden_key(call))],
    )


def _gradients(target: Calls, golden: Calls, forward: list[Match], translation: Translation) -> list[Match]:
    modules = {m.target.key: m.golden.key for m in forward if m.target and m.golden and m.target.kind == "module"}
    known = {translation.golden_key(call): call for call in golden}
    by_key = {call.key: call for call in golden}
    matches: list[Match] = []
    taken: set[str] = set()
    for call in target:
        both = by_key.get(modules.get(call.key, "")), known.get(translation.target_key(call))
        free = [one for one in both if one is not None and one.name not in taken]
        # Modules of other classes are matched by what they compute; their own gradients may have the same names.
        fitting = [one for one in free if shapes(one.record) == shapes(call.record)]
        partner = next(iter(fitting or free), None)
        if partner is not None:
            taken.add(partner.name)
            how = "exact" if partner.key == call.key else "renamed"
            matches.append(Match(call, partner, how, 1.0 if how == "exact" else 0.9))
    return matches + _by_class(_without(target, matches, 0), _without(golden, matches, 1))


def _by_class(target: Calls, golden: Calls) -> list[Match]:
    """Gradients of a model whose paths changed because of a wrapper: matched if they are the only ones left of their
    class."""
    classes: list[dict[tuple[str, str], list[Call]]] = [defaultdict(list), defaultdict(list)]
    for found, calls in zip(classes, (target, golden)):
        for call in calls:
            found[call.key.rpartition(".")[2], shapes(call.record)].append(call)
    ours, theirs = classes
    pairs = [(calls, theirs[key]) for key, calls in ours.items() if key in theirs]
    return [Match(a[0], b[0], "renamed", 0.8) for a, b in pairs if len(a) == len(b) == 1]


def _in_order(matches: list[Match], target: Calls, golden: Calls) -> list[Match]:
    """Matches and unmatched calls, in the order of the target; a golden-only call follows its golden predecessor."""
    ours: set[str] = set()
    theirs: dict[str, int] = {}
    ordered: list[tuple[int, int, Match]] = []
    for match in matches:
        assert match.target is not None
        assert match.golden is not None
        place = match.target.order
        ours.add(match.target.name)
        theirs[match.golden.name] = place
        splits_golden = False
        for call in match.before:
            if target[min(call.order, len(target) - 1)] is call:
                ours.add(call.name)
            else:
                theirs[call.name] = place
                splits_golden = True
        ordered.append((place, 0, match._replace(splits_golden=splits_golden) if splits_golden else match))
    for call in target:
        if call.name not in ours:
            ordered.append((call.order, 0, Match(call, None, "unmatched", 0.0)))
    place = -1
    for rank, call in enumerate(golden):
        if call.name in theirs:
            place = theirs[call.name]
        else:
            ordered.append((place, 1 + rank, Match(None, call, "unmatched", 0.0)))
    ordered.sort(key=lambda entry: entry[:2])
    return [match for _, _, match in ordered]
