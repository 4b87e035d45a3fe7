"""What is compared with what: the rank of a dump, and the same thing of both runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, Union

from msprobe.compare.graph_source import GraphRank
from msprobe.dump.reader import RankDump

T = TypeVar("T")
Source = Union[RankDump, GraphRank]


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The same thing of both runs."""

    target: T
    golden: T
