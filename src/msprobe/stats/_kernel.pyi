from typing import Any, Optional

from msprobe.stats.figures import gauge as gauge
from msprobe.stats.figures import gauge_memory as gauge_memory
from msprobe.stats.result import Stats
from msprobe.stats.samples import advance as advance
from msprobe.stats.tensor_cache import TensorCache as TensorCache

def measure(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], want: int, threads: int = ..., /
) -> Stats: ...
def render(
    ptr: int, code: int, shape: tuple[int, ...], strides: tuple[int, ...], want: int, threads: int = ..., /
) -> tuple[str, Optional[str], int]: ...
def describe(
    tensor: Any, exchange: Any, heads: dict[Any, tuple[int, str]], strided: Any, want: int, /
) -> Optional[tuple[str, str]]: ...
def crc32(buffer: Any, value: int = ..., /) -> int: ...
def select(level: int, /) -> str:
    """Limits the CPU instructions to this level (0: portable C) from now on; for the tests."""

def damage(
    matrix: Any,
    mantissa: int,
    lowest: int,
    largest: float,
    has_inf: bool,
    scale: int,
    mode: int,
    rows: int,
    columns: int,
    bulk: float,
    norm: float,
    whole: float,
    peak: float,
    both: bool,
    /,
) -> tuple[int, int, int, float, float, float, float, float, int, int, int]:
    """The sums of native/damage.c, for msprobe/stats/damage.py."""

def extent(matrix: Any, /) -> tuple[float, int, int, int, float, float, float, float]:
    """The largest magnitude of a float32 matrix, its place, how many are not finite or zero, and four moments."""
