"""The rows of a unit that is equal on both sides: made when somebody asks for them, and not kept.

A report of all rows needs them; the answer does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Optional, Union, overload

from msprobe.compare.execute import Task, run_pair
from msprobe.compare.judge.presets import Preset
from msprobe.compare.judge.verdicts import Judge
from msprobe.compare.rows import Group
from msprobe.compare.sources import Pair, Source


class EqualGroups(Sequence[Group]):
    """The matched calls of an equal unit with their judged rows."""

    def __init__(self, task: Task, preset: Optional[Preset]) -> None:
        self._task = task
        self._preset = preset
        self._length: Optional[int] = None

    def _made(self) -> list[Group]:
        pair = self._task.pair
        groups = run_pair(self._task._replace(pair=Pair(replace(pair.target), replace(pair.golden))))
        Judge(self._preset).judge_step(groups)
        self._length = len(groups)  # list() asks for it after it has begun to read
        return groups

    @overload
    def __getitem__(self, place: int) -> Group: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Group]: ...
    def __getitem__(self, place: Union[int, slice]) -> Union[Group, Sequence[Group]]:
        return self._made()[place]

    def __iter__(self) -> Iterator[Group]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made()) if self._length is None else self._length


class EqualStacks(Mapping[str, list[str]]):
    """The source lines of one side of an equal unit; read when first asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, name: str) -> list[str]:
        return self._source.stacks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.stacks)

    def __len__(self) -> int:
        return len(self._source.stacks)
