"""What a step remembers of tensors: their text, for as long as nothing can have changed them.

The twin of remembered.c, for machines without a compiler. A tensor is known by identity, version, memory and
requires_grad; it is held weakly. What writes memory through another tensor must say so (`written`), as must what
hands out a way to write it later (`expose`) or may have written anything (`forget`). Memory shared with numpy
or another process is never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional
from weakref import ref

from msprobe.stats.python_kernel import describe

_FLAGS = ('"requires_grad": false', '"requires_grad": true')


@dataclass
class Entry:
    """What is known of one tensor. Further members have their place at `at` of its JSON."""

    text: str
    at: int
    saved: list[str] = field(default_factory=list)  # the file that holds the tensor, once there is one
    state: tuple[Any, ...] = ()


class Remembered:
    def __init__(
        self, exchange: Any, heads: dict[Any, tuple[int, str]], strided: Any, want: int, remembers: bool, checks: bool
    ) -> None:
        """Without `remembers` every tensor is measured each time. `checks`: what is remembered is measured again."""
        self._describe = (exchange, heads, strided, want)
        self._remembers = remembers
        self._checks = checks
        self._known: dict[int, Entry] = {}
        self._writes: dict[Optional[int], int] = {}
        self._exposed: set[Optional[int]] = set()

    def text(self, tensor: Any) -> Optional[str]:
        """The JSON of a plain tensor, or None."""
        entry = self.look(tensor)
        return None if entry is None else entry.text

    def look(self, tensor: Any) -> Optional[Entry]:
        """The same as an Entry, to which members may be added."""
        entry = self.recall(tensor)
        if entry is not None:
            if self._checks and self._measured(tensor) != (entry.text, entry.at):
                raise AssertionError(
                    "msprobe remembered statistics of a tensor that has changed since: please report this call"
                )
            return entry
        found = self._measured(tensor)
        return None if found is None else self.remember(tensor, *found)

    def recall(self, tensor: Any) -> Optional[Entry]:
        """The Entry that is remembered of a tensor, or None."""
        entry = self._known.get(id(tensor))
        if entry is None or entry.state != self._state(tensor, entry.state[0]) or entry.state[1]() is not tensor:
            return None
        return entry

    def remember(self, tensor: Any, text: str, at: int) -> Entry:
        """An Entry of a tensor that others have described."""
        entry = Entry(text, at)
        if self._remembers and self.is_ours(tensor):
            state = self._state(tensor, _storage(tensor))
            if state:
                entry.state = state
                self._known[id(tensor)] = entry
        return entry

    def is_ours(self, tensor: Any) -> bool:
        """Whether nobody can change its memory unnoticed; RuntimeError where it has none of its own."""
        storage = tensor.untyped_storage()
        if not storage.resizable() or (storage.is_shared() and tensor.is_cpu):  # numpy's; another process may write it
            return False
        return not (self._exposed and storage.data_ptr() in self._exposed)

    def written(self, tensor: Any) -> None:
        """This tensor's memory was written: whatever lies in it has changed."""
        storage = _storage(tensor)
        self._writes[storage] = self._writes.get(storage, 0) + 1

    def expose(self, tensor: Any) -> bool:
        """Its memory may change at any time from now on. Returns whether that is news."""
        storage = _storage(tensor)
        if storage in self._exposed:
            return False
        self._exposed.add(storage)
        return True

    def forget(self) -> None:
        """All memory may have changed."""
        self._known.clear()
        self._writes.clear()

    def _state(self, tensor: Any, storage: Optional[int]) -> tuple[Any, ...]:
        """What must be as it was; nothing where a tensor cannot be told apart from its later self."""
        try:
            at = (tensor._version, tensor.data_ptr(), tensor.requires_grad)
        except RuntimeError:  # an inference tensor, a functorch wrapper, a tensor without memory
            return ()
        return (storage, ref(tensor), *at, self._writes.get(storage, 0))

    def _measured(self, tensor: Any) -> Optional[tuple[str, int]]:
        try:
            found = describe(tensor, *self._describe)
        except (RuntimeError, ValueError):
            return None
        if found is None:
            return None
        start = f"{found[0]}{_FLAGS[tensor.requires_grad]}"
        return f"{start}{found[1]}}}", len(start)


def _storage(tensor: Any) -> Optional[int]:
    """Where the memory begins that it lies in; None where it has none of its own."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None
    return int(address)
