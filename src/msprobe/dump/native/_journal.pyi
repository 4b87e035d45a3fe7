from mmap import mmap
from typing import Any, Optional, Union

def begin_line(call: int, name: str, parent: Optional[str], stack: Optional[int], text: str, /) -> str: ...
def end_line(call: int, text: str, /) -> str: ...
def record_line(name: str, parent: Optional[str], stack: Optional[int], text: str, /) -> str: ...
def scan(
    data: Union[bytes, mmap],
    position: int,
    longest: int,
    records: dict[bytes, Any],
    begun: dict[int, Any],
    phase: Any,
    entry: type[tuple[Any, ...]],
    /,
) -> int:
    """Takes regular lines into `records` and `begun`. Returns the position of the first line that is not regular."""

def member(data: Union[bytes, mmap], name: bytes, bodies: tuple[tuple[int, int], ...], unfinished: bool, /) -> bytes:
    """A record as a member of dump.json."""
