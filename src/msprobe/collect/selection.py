"""Which calls are wanted: `scope`, `list` and `data_mode` of the configuration.

Asked at every call, so the answer for the usual case (no filter) is an attribute, not a method:
`everything` is true when no name filter is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from .names import BACKWARD, FORWARD


class Selection:
    """Decides by name, in execution order."""

    def __init__(self, scope: Sequence[str], wanted: Sequence[str], data_mode: Sequence[str]) -> None:
        modes = set(data_mode)
        directions = modes & {FORWARD, BACKWARD} or {FORWARD, BACKWARD}
        sides = modes & {"input", "output"} or {"input", "output"}
        self.forward = FORWARD in directions
        self.backward = BACKWARD in directions
        self.inputs = "input" in sides
        self.outputs = "output" in sides
        self.everything = not scope and not wanted
        self._first, self._last = (scope[0], scope[1]) if scope else ("", "")
        self._inside = False
        self._wanted = tuple(wanted)
        self._hits: set[str] = set()

    def enter(self, name: str, parents: Sequence[str] = ()) -> bool:
        """Whether this call is wanted. Called when it begins; `parents` are the modules around it, outermost first."""
        if self.everything:
            return True
        if self._first:
            if not self._inside and _names(self._first, name):
                self._inside = True
                self._hits.add(self._first)
            return self._inside
        return self._listed(name, parents)

    def enter_as(self, spelling: str) -> bool:
        """Whether an entry with a dot is another spelling of a call that begins, or the beginning of one."""
        found = [entry for entry in self._wanted if "." in entry and _names(entry, spelling)]
        self._hits.update(found)
        return bool(found)

    def may_want(self, name: str, parents: Sequence[str] = ()) -> bool:
        """Whether a call that has not begun yet can be wanted: a scope decides only when its turn comes."""
        return self.everything or bool(self._first) or self._listed(name, parents)

    def leave(self, name: str) -> None:
        """The call is over: the last one of a scope closes it."""
        if self._inside and _names(self._last, name):
            self._inside = False
            self._hits.add(self._last)

    def matched_nothing(self) -> list[str]:
        """The entries of the filter that no call has answered to, for the warning at the end."""
        entries = (self._first, self._last) if self._first else self._wanted
        return [entry for entry in entries if entry not in self._hits]

    def restart(self) -> None:
        """A new step: an unclosed scope does not reach into it."""
        self._inside = False

    def _listed(self, name: str, parents: Sequence[str]) -> bool:
        found = False
        for entry in self._wanted:
            if matches(entry, name) or any(_inside(entry, parent, name) for parent in parents):
                self._hits.add(entry)
                found = True
        return found


def matches(entry: str, name: str) -> bool:
    """A list entry with a dot is a full name or its beginning; one without is a part of the API's or module's name."""
    if "." in entry:
        return _names(entry, name)
    return entry in _plain(name)


def _names(entry: str, name: str) -> bool:
    return name == entry or name.startswith(entry + ".")


def _inside(entry: str, parent: str, name: str) -> bool:
    """Whether `entry` names the module `parent` in a way that includes the direction of `name`."""
    if "." not in entry or not _names(entry, parent):
        return False
    direction = _direction(entry)
    return direction is None or direction == _direction(name)


def _direction(name: str) -> Optional[str]:
    for token in reversed(name.split(".")[-2:]):
        if token in (FORWARD, BACKWARD):
            return token
    return None


def _plain(name: str) -> str:
    """`Functional.relu.0.forward` -> `relu`; `Module.layer.fc.Linear.forward.0` -> `layer.fc.Linear`."""
    return ".".join(name.split(".")[1:-2]) or name
