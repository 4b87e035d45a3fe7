"""`compare`: from two paths to the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.compare.align.translate import Translation
from msprobe.compare.engine import Engine, open_engine
from msprobe.compare.execute import Task
from msprobe.compare.inputs import Inputs, Pair, open_inputs, pair_again
from msprobe.compare.judge.explain_missing import cover
from msprobe.compare.judge.presets import PRESETS
from msprobe.compare.judge.verdicts import Judge
from msprobe.compare.merge import grouped, load_rules
from msprobe.compare.origin.find import Unit, group_under_choice, settle, suspect
from msprobe.compare.origin.trace import Group, follow
from msprobe.compare.result import Comparison, UnitResult, concluded
from msprobe.compare.rows import NOT_COMPARED
from msprobe.dump.errors import DumpError

PathLike = Union[str, Path]
Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


def _silent(things: Iterable[Any], total: int, text: str) -> Iterable[Any]:
    return things


def compare(
    target: PathLike,
    golden: PathLike,
    *,
    match: str = "auto",
    mapping: Optional[Translation] = None,
    steps: Optional[Sequence[int]] = None,
    ranks: Optional[Sequence[int]] = None,
    tolerance: str = "auto",
    noise: Optional[PathLike] = None,
    merge: Optional[str] = None,
    jobs: int = 1,
    engine: str = "local",
    progress: Progress = _silent,
) -> Comparison:
    """Compares two dumps and names where they started to differ.

    `match` is auto, exact or fuzzy; `tolerance` auto, or one of the presets 8.3 and 26; `noise` a second dump of the
    golden run, whose differences from the first are taken as the noise to expect; `merge` "tp" or a file of rules,
    where the tensor-parallel layouts differ. Raises DumpError where there is nothing to compare.
    """
    preset = PRESETS.get(tolerance)
    if tolerance != "auto" and preset is None:
        raise DumpError(f"The tolerance {tolerance!r} is unknown; choose auto, {', '.join(PRESETS)}.")
    inputs = open_inputs(Path(target), Path(golden), steps, ranks, merging=merge is not None)
    translation = mapping or Translation()
    with open_engine(engine, jobs) as workers:
        tasks = _tasks(inputs, match, translation, merge)
        measured = list(progress(workers.run(tasks), len(tasks), "comparing"))
        levels = _noise(Path(noise), inputs, workers) if noise else {}
    judges: dict[Optional[int], Judge] = {}
    results: list[UnitResult] = []
    units: list[Unit] = []
    for task, groups in zip(tasks, measured):
        pair = task.pair
        rank = pair.target.rank
        judge = judges.setdefault(rank, Judge(preset))
        judge.noise = levels.get(pair.golden.path) if noise else None
        judge.start_step(groups)
        for found, rows in groups:
            judge.judge(found, rows)
        cover(groups)
        trace = follow(groups)
        stacks = (pair.target.stacks, pair.golden.stacks)
        units.append(Unit(pair.target.step, rank, trace, stacks, suspect(trace)))
        results.append(UnitResult(pair.target.step, rank, pair.target.label, groups, stacks))
    origin = settle(units)
    for unit in results:
        group_under_choice(origin, unit.groups)
    counts, reasons = _counted(results)
    return Comparison(
        Path(target), Path(golden), concluded(counts, reasons), origin, counts, inputs.notes, results, reasons
    )


def _tasks(inputs: Inputs, match: str, translation: Translation, merge: Optional[str]) -> list[Task]:
    if merge is None:
        return [Task(pair, match, translation) for pair in inputs.pairs]
    merges = grouped(inputs.sides, load_rules(merge))
    return [Task(Pair(one.target[0], one.golden[0]), match, translation, one) for one in merges]


def _counted(units: list[UnitResult]) -> tuple[Counter[str], Counter[str]]:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for unit in units:
        for row in unit.rows():
            counts[row.verdict] += 1
            if row.verdict == NOT_COMPARED:
                reasons[row.reason.partition(":")[0]] += 1
    return counts, reasons


def _noise(path: Path, inputs: Inputs, workers: Engine) -> dict[Path, dict[str, float]]:
    """Per golden rank directory: how far each of its rows is from the second golden run's."""
    pairs = pair_again([pair.golden for pair in inputs.pairs], path)
    tasks = [Task(pair, "auto", Translation()) for pair in pairs]
    return {pair.golden.path: _distances(groups) for pair, groups in zip(pairs, workers.run(tasks))}


def _distances(groups: list[Group]) -> dict[str, float]:
    return {
        row.golden_name: row.distance
        for _, rows in groups
        for row in rows
        if row.golden_name is not None and row.distance is not None
    }
