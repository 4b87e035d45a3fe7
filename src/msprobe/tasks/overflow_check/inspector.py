"""What overflow_check needs to know about the tensors of a framework."""

from __future__ import annotations

from typing import Any, Optional, Protocol

from msprobe.stats.dtype_ranges import Ranges
from msprobe.stats.own_infinities import Signs
from msprobe.tasks.overflow_check.open_calls import Holder


class TensorInspector(Protocol):
    budget: int
    """Bytes of forward arguments that may be kept alive until their gradients come."""

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        """The tensors among arguments, however nested."""

    def look(self, tensor: Any, ranges: Optional[Ranges] = None, title: str = "") -> int:
        """Returns FINITE, INFINITE or NAN. Notes in `ranges` how close the call `title` comes to the limits of its
        dtype."""

    def infinities(self, tensor: Any) -> Optional[Signs]:
        """1, -1 or 0 for each element: +inf, -inf, anything else. None if the elements cannot be read."""

    def version(self, tensor: Any) -> int: ...

    def remembers(self, tensor: Any) -> bool:
        """Whether `version` changes whenever this tensor does."""

    def versions(self, tensors: list[Any]) -> list[tuple[Any, int]]: ...

    def copy(self, tensor: Any) -> Any: ...

    def hold(self, tensor: Any) -> Optional[Holder]:
        """A weak reference to the tensor; None for what is not a tensor."""

    def size(self, tensor: Any) -> int:
        """The size in bytes."""

    def fresh(self) -> None:
        """Clears cached statistics, before a record is rendered."""

    def circumstances(self) -> str:
        """JSON members that a replay needs (autocast), or nothing."""
