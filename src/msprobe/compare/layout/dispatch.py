"""Modules around experts that are distributed over ranks: each rank sends its own tokens there. Positions, counts and
buffers between the router and the experts depend on the tokens and experts of a rank. If they cannot be matched, they
do not count: the experts and the result of the module are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from msprobe.compare.calls import FORWARD, Match, module_path
from msprobe.compare.layout.shards import local_shape
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, WARNING, Group, Judgement
from msprobe.dump.names import MODULE_PREFIXES
from msprobe.messages import Message

_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)
_LISTED = 4
_OWN_TOKENS = Reason(Kind.COVERED, Message("layout.own_tokens"))


def cover_dispatch(groups: Sequence[Group], found: dict[int, Judgement]) -> None:
    """Adds the judgements of calls made directly in a module whose inner modules are distributed over ranks."""
    owned, called = _modules(groups)
    spread = {above for path in owned if (above := _nearest(path, called - owned)) is not None}
    for match, rows in groups if spread else ():
        if match.call.kind == "api" and _module_around(match) in spread:
            for row in rows:
                unexplained = row.joined is not None and not row.joined.explained
                if unexplained and row.verdict in (WARNING, ERROR):
                    found[id(row)] = Judgement(NOT_COMPARED, 0.0, _OWN_TOKENS)


def tokens_note(groups: Sequence[Group]) -> list[Message]:
    """Which experts got a different number of tokens than in the golden run: the first size of their input."""
    found = []
    for match, rows in groups:
        if match.call.kind != "module" or match.call.direction != FORWARD:
            continue
        given = (row.joined for row in rows if row.slot.startswith("input."))
        case = next((one for one in given if one is not None), None)
        if case is None or not any(case.owned) or any(len(side.items) > 1 for side in (case.target, case.golden)):
            continue
        shapes = [local_shape(side.first) for side in (case.target, case.golden)]
        if all(shapes) and shapes[0][0] != shapes[1][0] and shapes[0][1:] == shapes[1][1:]:
            tokens = {"target": shapes[0][0], "golden": shapes[1][0]}
            found.append(Message("note.got", module=module_path(match.call.key), **tokens))
    if len(found) > _LISTED:
        return [Message("note.more_tokens", experts=found[:_LISTED], more=len(found) - _LISTED)]
    return [Message("note.tokens", experts=found)] if found else []


def _modules(groups: Sequence[Group]) -> tuple[set[str], set[str]]:
    """The paths of the modules that only some ranks have, and of all that are called."""
    owned: set[str] = set()
    called: set[str] = set()
    for match, rows in groups:
        if match.call.kind == "module":
            called.add(module_path(match.call.key))
            if any(row.joined is not None and any(row.joined.owned) for row in rows):
                owned.add(module_path(match.call.key))
    return owned, called


def _nearest(path: str, called: set[str]) -> Optional[str]:
    """The innermost of these modules around a path; a list of modules is not called."""
    while path:
        path = path.rpartition(".")[0]
        if path in called:
            return path
    return None


def _module_around(match: Match) -> str:
    """The path of the module that a call was made in."""
    parent = match.call.parent or ""
    return module_path(parent.rpartition(".")[0].rpartition(".")[0]) if parent.startswith(_MODULES) else ""
