"""The rows of a unit that agrees: made on request, not stored. A report of all rows needs them; the answer does not."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Optional, Union, overload

from msprobe.compare.execute import Task, run_pair
from msprobe.compare.judge.presets import Preset
from msprobe.compare.judge.verdicts import Judge
from msprobe.compare.reasons import Reason
from msprobe.compare.rows import Group, Judgement
from msprobe.compare.sources import Pair, Source


class _RemadeGroups(Sequence[Group]):
    """The matched calls of a unit with their judged rows, read and measured again."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._length: Optional[int] = None

    def _made(self) -> list[Group]:
        pair = self._task.pair
        groups = run_pair(self._task._replace(pair=Pair(replace(pair.target), replace(pair.golden))))
        self._judge(groups)
        self._length = len(groups)  # list() asks for it after it has begun to read
        return groups

    def _judge(self, groups: list[Group]) -> None:
        raise NotImplementedError

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


class EqualGroups(_RemadeGroups):
    """The groups of a unit that is equal on both sides: this decides how each row is judged."""

    def __init__(self, task: Task, preset: Optional[Preset]) -> None:
        super().__init__(task)
        self._preset = preset

    def _judge(self, groups: list[Group]) -> None:
        Judge(self._preset).judge_step(groups)


class AgreedGroups(_RemadeGroups):
    """The groups of a unit in which nothing differs by more than rounding. It stores the judgements, ten bytes each."""

    def __init__(self, task: Task, groups: Sequence[Group]) -> None:
        super().__init__(task)
        self._kinds: list[tuple[str, Reason]] = []
        self._places = array("H")
        self._tolerances = array("d")
        known: dict[tuple[str, Reason], int] = {}
        for _, rows in groups:
            for row in rows:
                kind = row.verdict, row.why if row.excuse is not None else row.judgement.reason
                self._places.append(known.setdefault(kind, len(known)))
                self._tolerances.append(row.judgement.tolerance)
        self._kinds = list(known)

    def _judge(self, groups: list[Group]) -> None:
        kept = zip(self._places, self._tolerances)
        for _, rows in groups:
            for row, (place, tolerance) in zip(rows, kept):
                verdict, reason = self._kinds[place]
                row.judgement = Judgement(verdict, tolerance, reason)


class EqualStacks(Mapping[str, list[str]]):
    """The source lines of one side of a unit; read at the first request."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, name: str) -> list[str]:
        return self._source.stacks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.stacks)

    def __len__(self) -> int:
        return len(self._source.stacks)
