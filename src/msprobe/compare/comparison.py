"""`compare`: from two paths to the answer."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.compare.align.translate import Translation
from msprobe.compare.engine import Engine, Progress, open_engine
from msprobe.compare.equal_units import AgreedGroups, EqualGroups, EqualStacks
from msprobe.compare.excuses import Given, excuse
from msprobe.compare.execute import Outcome, Task, flow_troubles, run
from msprobe.compare.inputs import Inputs, open_inputs, pair_again
from msprobe.compare.judge.presets import PRESETS, Preset
from msprobe.compare.judge.quantised import is_quantised, judge_quantised
from msprobe.compare.judge.verdicts import Judge
from msprobe.compare.layout.covering import cover
from msprobe.compare.layout.faults.diagnose import diagnose
from msprobe.compare.layout.faults.training import joined_training
from msprobe.compare.layout.fixed import LayoutFile, read_layout
from msprobe.compare.layout.report import joined_label, joined_notes, joined_stacks
from msprobe.compare.layout.unit import JoinedUnit, JoinTask
from msprobe.compare.origin.describe import Unit, group_under_choice, settle
from msprobe.compare.origin.find import suspect
from msprobe.compare.origin.format import blame_format
from msprobe.compare.origin.loop_findings import without_compiled
from msprobe.compare.origin.made import name_way
from msprobe.compare.origin.parameters import name_parameter
from msprobe.compare.origin.reordered import blame_arguments, blame_forward
from msprobe.compare.origin.source import made_in
from msprobe.compare.origin.state import name_buffer, other_buffers, state_text
from msprobe.compare.origin.trace import Trace, follow
from msprobe.compare.origin.training import TrainingDifference, takes_other_parts, training_differences
from msprobe.compare.origin.wording import argument_text
from msprobe.compare.phases import Phase, Stacks
from msprobe.compare.reasons import BENIGN, Kind
from msprobe.compare.result import DIFFERS, Comparison, Tally, UnitResult, conclude, tally_rows
from msprobe.compare.rows import ERROR, PASS, WARNING, Group, Judgement, Row, is_tensor
from msprobe.compare.sources import Pair, Source
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.dump.record_keys import DAMAGED
from msprobe.messages import Message

ALIKE = 0.3
"""If fewer of the calls than this share have a counterpart, the runs have different models."""
KEPT_ROWS = 200_000
"""Rows that agree are kept up to this number, some 0.5 GB."""
FEW = 20
"""With fewer calls, msprobe does not judge whether the models differ."""

PathLike = Union[str, Path]


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
    layout: Optional[PathLike] = None,
    jobs: int = 1,
    engine: str = "local",
    progress: Progress = _silent,
) -> Comparison:
    """Compares two dumps and finds where they start to differ.

    `match` is auto, exact or fuzzy; `tolerance` is auto or a preset, 8.3 or 26; `noise` is a second dump of the golden
    run: its differences from the first are the expected noise. If the runs have different parallel layouts, the ranks
    of a step are compared as one; `layout` is a file that says how their shards belong together, if msprobe finds it
    wrongly. Raises DumpError if there is nothing to compare.
    """
    preset = PRESETS.get(tolerance)
    if tolerance != "auto" and preset is None:
        raise DumpError(f"The tolerance {tolerance!r} is unknown; choose auto, {', '.join(PRESETS)}.")
    inputs = open_inputs(Path(target), Path(golden), steps, ranks, join=layout is not None)
    translation = mapping or Translation()
    with open_engine(engine, jobs, progress) as workers:
        tasks = _tasks(inputs, match, translation, read_layout(Path(layout)) if layout is not None else None)
        stages = _Stages(preset, _noise(Path(noise), inputs, workers) if noise else {})
        for outcome, task in zip(progress(workers.run(tasks), len(tasks), "comparing"), tasks):
            stages.take(task, outcome)
    if not stages.results:
        raise stages.errors[0]
    unread = [Message("note.unread", error=str(error).rstrip(".")) for error in stages.errors]
    origin = settle(stages.units)
    said = stages.settings if origin is not None and origin.kind == "training" else set()
    if origin is not None and origin.kind == "argument":
        blamed = origin.name.rsplit(".", 2)[0]
        said = {note for note in stages.notes if note.id == "note.harmless_argument" and note.args["call"] == blamed}
    gaps = [*inputs.gaps, *stages.troubles]
    notes = [*unread, *gaps, *stages.unfinished, *inputs.notes, *(note for note in stages.notes if note not in said)]
    unlike = _unlike_runs(inputs, stages)
    if unlike:
        origin, notes = None, [unlike, *notes]
    tally = Tally()
    for unit in stages.results:
        tally.add(unit.tally)
        causes = group_under_choice(origin, unit.groups) if unit.differs else {}
        for row in unit.rows() if causes else ():
            row.cause = causes.get(id(row), "")
    counts = tally.counts
    verdict = DIFFERS if unlike else conclude(counts, tally.kinds, origin, complete=not gaps and not unread)
    return Comparison(Path(target), Path(golden), verdict, origin, counts, notes, stages.results, tally.reasons)


class _Stages:
    """Judges each unit, explains what is missing, follows the differences: in the order of steps."""

    def __init__(self, preset: Optional[Preset], levels: Mapping[Path, Mapping[str, float]]) -> None:
        self._preset = preset
        self._levels = levels
        self._judges: dict[Optional[int], Judge] = {}
        self._how: dict[Message, None] = {}
        self._rounded: dict[str, None] = {}
        """The parameters whose gradient is only rounding, if the runs make different steps of it."""
        self._buffers: list[str] = []
        """The first buffer of each rank that differs when the run begins."""
        self.settings: set[Message] = set()
        self._tallies: dict[bytes, Tally] = {}
        self.results: list[UnitResult] = []
        self.units: list[Unit] = []
        self.errors: list[DumpError] = []
        self.troubles: list[Message] = []
        self.unfinished: list[Message] = []
        self.has_equal = False
        self._rows = 0

    def take(self, task: Task, outcome: Outcome) -> None:
        """Judges what was measured. A unit equal on both sides gets the counts of the first with its outline."""
        self.troubles += outcome.troubles
        self.unfinished += outcome.unfinished
        if outcome.error is not None:
            self.errors.append(outcome.error)
            return
        outline = outcome.outline
        if outcome.measured is None and outline in self._tallies:
            target, golden = task.pair.target, task.pair.golden
            stacks, groups = (EqualStacks(target), EqualStacks(golden)), EqualGroups(task, self._preset)
            tally = self._tallies[outline]
            self.results.append(UnitResult(target.step, target.rank, target.label, groups, stacks, tally))
            self.units.append(Unit(target.step, target.rank, Trace((), ()), stacks, None))
            self.has_equal = True
            return
        self.run(task, run(task) if outcome.measured is None else outcome.measured)
        gc.collect(0)  # the flow of values has cycles, and the collector may be off; only what is new is looked at
        if outline is not None:
            self._tallies[outline] = self.results[-1].tally

    def run(self, task: Task, measured: Union[list[Group], JoinedUnit]) -> None:
        pair = task.pair
        joined = measured if isinstance(measured, JoinedUnit) else None
        groups = measured.groups if isinstance(measured, JoinedUnit) else measured
        rank = None if joined is not None else pair.target.rank
        is_first = rank not in self._judges
        if is_first:
            self._judges[rank] = Judge(self._preset, all(map(_is_exact, (pair.target, pair.golden))))
        judge = self._judges[rank]
        judge.judge_step(groups, self._levels.get(pair.golden.path))
        apart = joined is None and is_quantised(groups)
        exceeding = judge_quantised(groups, pair.target, pair.golden) if apart else []
        stacks = _stacks(pair)
        events = _training(pair.target), _training(pair.golden)
        guilty: tuple[int, ...] = ()
        other_parts = takes_other_parts(*events)
        training = training_differences(*events)
        if joined is not None and task.join is not None:
            stacks, other_parts = joined_stacks(joined, task.join), False
            training, guilty = joined_training(task.join)
            events = [], []
        facts = excuse(groups, stacks, _given(pair, joined is not None, other_parts, training))
        for rounded in facts.rounded.values() if facts is not None else ():
            judge.remember_noise(rounded.gradient)
        self._rounded.update(dict.fromkeys(facts.differing_noise() if facts is not None else ()))
        if joined is not None:
            _apply(cover(groups, joined.microbatches.target * joined.microbatches.golden), groups)
        trace = follow(groups, stacks, facts)
        if joined is not None:
            trace.unmatched.clear()  # a call that only one layout needs is not missing
        found = blame_format(exceeding, trace) or suspect(trace, training)
        if not exceeding and found is not None and blame_forward(found, groups):
            trace = follow(groups, stacks, facts)
            found = suspect(trace, training)
        if joined is not None and found is not None:
            found = diagnose(found, trace, guilty, joined.alone)
        if found is not None:
            found = name_parameter(found, trace, events[0])
            if found.kind in ("argument", "overwritten"):
                blame_arguments(groups[found.index])
        buffers = other_buffers(*events)
        if found is not None and buffers:
            found = name_buffer(found, buffers, pair.target.step if self.units else None)
        if found is not None and joined is None:
            sources = getattr(pair.target, "made_values", None), getattr(pair.golden, "made_values", None)
            found = name_way(found, trace, sources)
            told = [one for source in (pair.target, pair.golden) for one in flow_troubles(source)]
            self.troubles += [one for one in told if one not in self.troubles]
        trace.facts = None  # the flow of values of every step would be larger than its rows
        if trace.roles:
            for _, rows in groups:
                for row in rows:
                    row.role = trace.roles.get(id(row), "")
        tally = tally_rows(groups)
        kept: Sequence[Group] = groups
        if joined is None and found is None and self._may_forget(groups, tally):
            kept, trace = AgreedGroups(task, groups), Trace((), ())
            self.has_equal = True
            judge.forget_rows()
            for source in (pair.target, pair.golden):
                if isinstance(source, RankDump):
                    source.forget()
        made = made_in(pair.target.run), made_in(pair.golden.run)
        self.units.append(Unit(pair.target.step, rank, trace, stacks, found, made))
        label = pair.target.label if joined is None else joined_label(pair.target)
        ranks = joined.ranks if joined is not None else {}
        self.results.append(UnitResult(pair.target.step, rank, label, kept, stacks, tally, ranks, made))
        if buffers and is_first:
            self._buffers.append(next(iter(buffers)))
        self._note(judge, groups, without_compiled(training, trace))
        if joined is not None:
            self._how.update(dict.fromkeys(joined_notes(joined)))

    def _may_forget(self, groups: Sequence[Group], tally: Tally) -> bool:
        """Whether the rows of a unit can be made again on request: many ranks that agree except for rounding must not
        stay in memory. Saved tensors are not read twice."""
        if tally.counts[ERROR] or tally.counts[WARNING] or not tally.counts[PASS] or not tally.kinds <= BENIGN:
            return False
        self._rows += sum(tally.counts.values())
        if self._rows <= KEPT_ROWS:
            return False
        return not any(row.measured is not None for _, rows in groups for row in rows)

    def _note(
        self,
        judge: Judge,
        groups: Sequence[Group],
        training: Sequence[TrainingDifference],
    ) -> None:
        said = [Message("note.run_wide", target=ours, golden=theirs) for ours, theirs in sorted(judge.run_wide)]
        said += [Message("note.damaged", name=name, why=why) for name, why in _damaged(groups)]
        said += [one.sentence for one in training if one.kind != "total norm"]  # the gradients show it
        earlier = any(unit.candidate is not None for unit in self.units[:-1])  # since then, little can be seen
        self.settings.update(one.sentence for one in training if not one.note_only)
        differs = {match.call.key for match, rows in groups if any(row.verdict == ERROR for row in rows)}
        said += [
            Message("note.harmless_argument", call=match.call.key, argument=argument_text(match.call, row))
            for match, rows in groups
            for row in rows
            if row.excuse is not None and row.measurement.reason.kind is Kind.ARGUMENT
            if not earlier and match.call.key not in differs and _has_same_results(rows)
        ]
        self._how.update(dict.fromkeys(said))

    @property
    def notes(self) -> list[Message]:
        """The notes next to the answer, when all units are judged."""
        idle = self._buffers if all(unit.candidate is None for unit in self.units) else []
        said = (Message("state.harmless", what=state_text(name)) for name in idle)
        rows = sum(judge.other_bytes for judge in self._judges.values())
        unseen = [Message("note.other_bytes", number=rows)] if rows else []
        rounded = [Message("note.rounded_gradient", names=[*self._rounded])] if self._rounded else []
        return [*self._how, *dict.fromkeys(said), *unseen, *rounded]


def _has_same_results(rows: Sequence[Row]) -> bool:
    """Whether the results of a call agree, not only what follows from them."""
    results = [row for row in rows if not row.is_input and is_tensor(row.golden)]
    return bool(results) and all(row.judgement.verdict == PASS for row in results)


def _given(pair: Pair[Source], joined: bool, other_parts: bool, training: Sequence[TrainingDifference]) -> Given:
    """What the dumps say about phases and values. Ranks that are compared as one have numbers of their own."""
    if joined:
        return Given(other_parts=other_parts, is_joined=True)
    sides = (pair.target, pair.golden)
    target, golden = (getattr(source, "phases", {}) for source in sides)
    identity = tuple(source.head.get("flow") == 1 for source in sides)
    same_optimizer = not any(one.kind in ("class", "how", "order") for one in training)
    other_settings = any(one.kind == "hyper-parameter" for one in training)
    numbers = identity[0], identity[1]
    return Given((target, golden), numbers, other_parts, False, same_optimizer, other_settings)


def _stacks(pair: Pair[Source]) -> Stacks:
    return EqualStacks(pair.target), EqualStacks(pair.golden)


def _apply(judgements: Mapping[int, Judgement], groups: Sequence[Group]) -> None:
    if judgements:
        for _, rows in groups:
            for row in rows:
                row.judgement = judgements.get(id(row), row.judgement)


def _is_exact(source: Source) -> bool:
    """Whether msprobe itself made the statistics, in full precision."""
    settings = source.run.get("settings")
    return "msprobe" in source.run and isinstance(settings, dict) and settings.get("precision") == "high"


def _damaged(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """The names of records that could not be read, and why."""
    for match, _ in groups:
        for call in (match.target, match.golden):
            if call is not None and isinstance(call.record, dict) and isinstance(call.record.get(DAMAGED), str):
                yield call.name, call.record[DAMAGED]


def _training(source: Source) -> list[Any]:
    events = getattr(source, "training", [])
    return events if isinstance(events, list) else []


def _unlike_runs(inputs: Inputs, stages: _Stages) -> Optional[Message]:
    """Why the first difference of two dumps means nothing; None if it means something."""
    if not any(unit.candidate for unit in stages.units):
        return None
    if inputs.other_steps:
        return inputs.other_steps
    if stages.has_equal:
        return None
    steps = [zip(unit.trace.groups, unit.trace.phases) for unit in stages.units]
    forward = [match for step in steps for (match, _), phase in step if phase is Phase.FORWARD]
    matched, made = sum(match.how != "unmatched" for match in forward), len(forward)
    if forward:  # one call of a run may be many of the other
        made = min(sum(one is not None for one in side) for side in zip(*((m.target, m.golden) for m in forward)))
    if made >= FEW and matched < ALIKE * made:
        return Message("note.unlike_models", matched=matched, made=made)
    return None


def _tasks(inputs: Inputs, match: str, translation: Translation, file: Optional[LayoutFile]) -> list[Task]:
    if not inputs.joins:
        return [Task(pair, match, translation) for pair in inputs.pairs]
    return [
        Task(
            Pair(one.target[0], one.golden[0]),
            match,
            translation,
            JoinTask(tuple(one.target), tuple(one.golden), file),
        )
        for one in inputs.joins
    ]


def _noise(path: Path, inputs: Inputs, workers: Engine) -> dict[Path, dict[str, float]]:
    """For each rank directory of the golden run: the distance of each row to that of the second golden run."""
    if any(len(step.golden) > 1 for step in inputs.joins):
        raise DumpError("--noise works only with a golden run of one rank if the layouts differ; leave it out.")
    compared = [*(pair.golden for pair in inputs.pairs), *(step.golden[0] for step in inputs.joins)]
    pairs = pair_again(compared, path)
    tasks = [Task(pair, "auto", Translation()) for pair in pairs]
    levels = {}
    for pair, outcome in zip(pairs, workers.run(tasks)):
        if outcome.error is not None:
            raise outcome.error
        assert not isinstance(outcome.measured, JoinedUnit)
        levels[pair.golden.path] = _distances(outcome.measured or [])  # nothing measured: it is equal, without noise
    return levels


def _distances(groups: list[Group]) -> dict[str, float]:
    return {
        row.golden_name: row.distance
        for _, rows in groups
        for row in rows
        if row.golden_name is not None and row.distance is not None
    }
