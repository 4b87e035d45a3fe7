"""Which calls are wanted: `scope`, `list`, `data_mode` and `tensor_list` of the configuration.

Every call asks this. In the usual case (no filter) the answer is an attribute and not a method: `everything` is true if
no name filter is set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Callable, Optional, Union

from msprobe.config.kinds import name_pattern
from msprobe.dump.names import BACKWARD, FORWARD, PARAMETERS_GRAD


class Selection:
    """Decides by name, in execution order."""

    def __init__(
        self,
        scope: Sequence[str],
        wanted: Sequence[str],
        data_mode: Sequence[str],
        files: Union[bool, Sequence[str]] = False,
    ) -> None:
        """`files`: whether the tensors of wanted calls are saved, or a list of the calls whose tensors are saved."""
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
        self._opened = False  # in this step
        self._wanted = tuple(wanted)
        self._files = files
        self.saves_any = files is not False
        self._hits: set[str] = set()
        self._saved: set[str] = set()
        self._last_came_first = False

    @property
    def saves_everything(self) -> bool:
        """Whether all tensors are saved: no filter leaves out a call, a direction or a side."""
        sides = self.forward and self.backward and self.inputs and self.outputs
        return self._files is True and self.everything and sides

    def saves(self, name: str) -> bool:
        """Whether the tensors of this call are saved."""
        if isinstance(self._files, bool):
            return self._files
        found = [entry for entry in self._files if matches(entry, name)]
        self._saved.update(found)
        return bool(found)

    def enter(self, name: str, parents: Sequence[str] = ()) -> bool:
        """Whether this call is wanted. Called when it begins; `parents` are the modules around it, outermost first."""
        if self.everything:
            return True
        if self._first:
            if not self._inside and self._begins_scope(name, parents):
                self._inside = self._opened = True
                self._hits.add(self._first)
            elif not self._hits and _names(self._last, name):
                self._last_came_first = True
            return self._inside
        return self._listed(name, parents)

    def _begins_scope(self, name: str, parents: Sequence[str]) -> bool:
        """The backward of a call can begin at the same moment as that of the module around it, and be seen first."""
        return _names(self._first, name) or (
            not self._opened and any(_names(self._first, parent) for parent in parents)
        )

    def enter_as(self, spelling: str) -> bool:
        """Whether an entry with a dot matches another spelling of the name of a call that begins."""
        found = [entry for entry in self._wanted if "." in entry and matches(entry, spelling)]
        self._hits.update(found)
        return bool(found)

    def may_want(self, name: str, parents: Sequence[str] = ()) -> bool:
        """Whether a call that has not begun yet can be wanted: a scope decides only when the call begins."""
        return self.everything or bool(self._first) or self._listed(name, parents)

    def leave(self, name: str) -> None:
        """The call has ended. The last call of a scope closes the scope."""
        if self._inside and _names(self._last, name):
            self._inside = False
            self._hits.add(self._last)

    def note_matched(self, entries: Sequence[str]) -> None:
        """These entries of the list have selected something elsewhere."""
        self._hits.update(entries)

    def list_unmatched(self, explain: Callable[[str], Optional[str]] = lambda entry: None) -> list[str]:
        """The warnings at the end of the run: the filters that matched no call. `explain` may know the reason."""
        if self._first in self._hits and self._last_came_first and self._last not in self._hits:
            return [
                f"{self._last!r} in scope ran before {self._first!r} and not after it: everything from "
                f"{self._first!r} on was collected. scope takes the first and the last call in the order in which "
                "they run."
            ]
        if self._first:  # the last call is not searched for before the first one
            missing = [name for name in (self._first, self._last) if name not in self._hits][:1]
        else:
            missing = [entry for entry in self._wanted if entry not in self._hits]
        remedy = 'Collect one step without it, with task "structure", to see the names.'
        warnings = []
        reasons = {entry: reason for entry in missing if (reason := explain(entry)) is not None}
        warnings += [f"{entry!r} in scope/list matched no call: {reason}." for entry, reason in reasons.items()]
        missing = [entry for entry in missing if entry not in reasons]
        if missing:
            named = ", ".join(map(repr, missing))
            warnings.append(f"{named} in scope/list matched no call: nothing was collected for it. {remedy}")
        if not isinstance(self._files, bool):
            unsaved = ", ".join(repr(entry) for entry in self._files if entry not in self._saved)
            if unsaved:
                warnings.append(
                    f"{unsaved} in tensor_list matched no collected call: no tensor was saved for it. {remedy}"
                )
        return warnings

    def restart(self) -> None:
        """A new step begins: a scope that is still open ends here."""
        self._inside = self._opened = False

    def _listed(self, name: str, parents: Sequence[str]) -> bool:
        found = False
        for entry in self._wanted:
            if matches(entry, name) or any(_inside(entry, parent, name) for parent in parents):
                self._hits.add(entry)
                found = True
        return found


def matches(entry: str, name: str) -> bool:
    """An entry `name-regex(...)` is a regular expression for the beginning of a name; one with a star or a question
    mark is a pattern for the path of a module or the name of an API. An entry with a dot is a full name or the
    beginning of one. An entry without a dot is a part of the name of an API or a module."""
    pattern = _pattern(entry)
    if pattern is not None:
        return pattern.match(name) is not None
    if "." in entry:
        return _names(entry, name)
    return entry in _plain(name)


@lru_cache(maxsize=1024)
def _pattern(entry: str) -> Optional[re.Pattern[str]]:
    """`layers.3.*` matches the module layers.3 and the modules inside it, wherever layers is; `*norm*` every norm."""
    pattern = name_pattern(entry)
    if pattern is None and ("*" in entry or "?" in entry):
        text = re.escape(entry).replace(r"\*", ".*").replace(r"\?", ".")
        pattern = rf"[^.]+\.(?:.*\.)?{text}(?:\.[^.]+\.[^.]+|\.{PARAMETERS_GRAD})\Z"
    return None if pattern is None else re.compile(pattern)


def _names(entry: str, name: str) -> bool:
    return name == entry or name.startswith(entry + ".")


def _inside(entry: str, parent: str, name: str) -> bool:
    """Whether `entry` names the module `parent` in a way that includes the direction of `name`."""
    if _pattern(entry) is not None:
        return matches(entry, parent)
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
    """`Functional.relu.0.forward` -> `relu`; `Module.layer.fc.Linear.forward.0` and
    `Module.layer.fc.Linear.parameters_grad` -> `layer.fc.Linear`."""
    parts = name.split(".")
    return ".".join(parts[1:-1] if parts[-1] == PARAMETERS_GRAD else parts[1:-2]) or name
