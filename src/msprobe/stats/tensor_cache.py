"""A cache for the texts of tensors in one step: a text is valid as long as the tensor cannot have changed.

This is the Python version of tensor_cache.c, for machines without a compiler. A tensor is identified by identity,
version, memory and requires_grad; the cache holds only a weak reference to it. With `numbers`, a text also has the
number of the value, which two texts share only if they hold the same value, and the number of its memory, which views
share. A storage is held weakly until `release`: no other storage gets its address before.

The caller must report three kinds of calls: a write to the memory of a tensor (`mark_written`), a call that makes a
later write possible (`expose`), and a call that may have written any memory (`clear`). Memory shared with numpy or
another process is never cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any, Optional
from weakref import ref

from msprobe.stats.python_kernel import describe

_FLAGS = ('"requires_grad": false', '"requires_grad": true')


@dataclass
class Entry:
    """The text of one tensor. Further members go to position `at` of its JSON."""

    text: str
    at: int
    saved: list[str] = field(default_factory=list)  # the file of the tensor, if it has been saved
    state: tuple[Any, ...] = ()
    value_id: Optional[int] = None
    numbers: str = ""


class TensorCache:
    def __init__(
        self,
        exchange: Any,
        heads: dict[Any, tuple[int, str]],
        strided: Any,
        want: int,
        remembers: bool,
        checks: bool,
        numbers: bool = False,
    ) -> None:
        """Without `remembers`, nothing is cached, and values have no number. `checks`: measures cached tensors again
        and compares."""
        self._describe = (exchange, heads, strided, want)
        self._remembers = remembers
        self._checks = checks
        self._known: dict[int, Entry] = {}
        self._writes: dict[Optional[int], int] = {}
        self._exposed: set[Optional[int]] = set()
        self._numbers: Optional[dict[int, int]] = {} if numbers else None
        self._free_weak_ref: Any = None
        self._values = count()

    def text(self, tensor: Any) -> Optional[str]:
        """The JSON of a plain tensor, or None."""
        entry = self.find(tensor)
        return None if entry is None else entry.text

    def find(self, tensor: Any) -> Optional[Entry]:
        """The Entry of a plain tensor, measured if needed, or None. The caller may add members to its JSON."""
        entry = self.recall(tensor)
        if entry is not None:
            found = self._measure(tensor) if self._checks else None
            if found is not None and f"{found[0][:-1]}{entry.numbers}}}" != entry.text:
                raise AssertionError(
                    "msprobe cached statistics of a tensor that has changed since then; please report this call"
                )
            return entry
        found = self._measure(tensor)
        return None if found is None else self.add(tensor, *found)

    def recall(self, tensor: Any) -> Optional[Entry]:
        """The cached Entry of a tensor, or None."""
        entry = self._find_value(tensor)
        return None if entry is None or entry.state[-1] != tensor.requires_grad else entry

    def _find_value(self, tensor: Any) -> Optional[Entry]:
        """The Entry of this value. Its text is valid if requires_grad is also the same."""
        entry = self._known.get(id(tensor))
        if entry is None or entry.state[1]() is not tensor:
            return None
        return entry if entry.state[:-1] == self._state(tensor, entry.state[0])[:-1] else None

    def add(self, tensor: Any, text: str, at: int) -> Entry:
        """Adds the Entry of a tensor that the caller has described. Its text gets the numbers."""
        entry = Entry(text, at)
        state = self._state(tensor, _storage(tensor)) if self._remembers and self.is_private(tensor) else ()
        if state:
            known = self._find_value(tensor)
            entry.state = state
            entry.value_id = None if self._numbers is None else next(self._values) if known is None else known.value_id
            self._known[id(tensor)] = entry
        memory = self.memory(tensor)
        value = "" if entry.value_id is None else f', "value_id": {entry.value_id}'
        entry.numbers = value if memory is None else f'{value}, "memory": {memory}'
        entry.text = f"{text[:-1]}{entry.numbers}}}"
        return entry

    def memory(self, tensor: Any) -> Optional[int]:
        """The number of the memory of a tensor; None without `numbers`, or if it has no memory of its own."""
        numbers = self._numbers
        if numbers is None:
            return None
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:
            return None
        number = numbers.get(storage._cdata)
        if number is None:
            number = numbers[storage._weak_ref()] = len(numbers)
            self._free_weak_ref = type(storage)._free_weak_ref
        return number

    def is_private(self, tensor: Any) -> bool:
        """Whether the memory cannot change unnoticed. Raises RuntimeError if the tensor has no memory of its own."""
        storage = tensor.untyped_storage()
        if not storage.resizable() or (
            storage.is_shared() and tensor.is_cpu
        ):  # memory of numpy, or shared with another process
            return False
        return not (self._exposed and storage.data_ptr() in self._exposed)

    def mark_written(self, tensor: Any) -> None:
        """Reports that the memory of this tensor was written: all tensors in it have changed."""
        storage = _storage(tensor)
        self._writes[storage] = self._writes.get(storage, 0) + 1

    def expose(self, tensor: Any) -> bool:
        """Reports that this memory may change at any time from now on. Returns whether this is new."""
        storage = _storage(tensor)
        if storage in self._exposed:
            return False
        self._exposed.add(storage)
        return True

    def clear(self) -> None:
        """Removes all entries: any memory may have changed."""
        self._known.clear()
        self._writes.clear()

    def release(self) -> None:
        """Removes all entries and numbers, and drops the weak references to storages."""
        self.clear()
        while self._numbers:
            self._free_weak_ref(self._numbers.popitem()[0])

    def __del__(self) -> None:
        self.release()

    def _state(self, tensor: Any, storage: Optional[int]) -> tuple[Any, ...]:
        """The state that must stay the same; empty if changes of the tensor cannot be detected."""
        try:
            version, address = tensor._version, tensor.data_ptr()
        except RuntimeError:  # an inference tensor, a functorch wrapper, a tensor without memory
            return ()
        return (storage, ref(tensor), version, address, self._writes.get(storage, 0), tensor.requires_grad)

    def _measure(self, tensor: Any) -> Optional[tuple[str, int]]:
        try:
            found = describe(tensor, *self._describe)
        except (RuntimeError, ValueError):
            return None
        if found is None:
            return None
        start = f"{found[0]}{_FLAGS[tensor.requires_grad]}"
        return f"{start}{found[1]}}}", len(start)


def _storage(tensor: Any) -> Optional[int]:
    """The address of the storage of a tensor; None if it has no memory of its own."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None
    return int(address)
