"""Examines one call of a dump: runs it on both sides, judges every output and gradient, and gives the reasons in words.

If the dump has the outputs themselves (task tensor), these are judged too, unless the re-run gives the same bits. The
training run computed them on its device and with its kernels: they may be wrong if the re-run is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np

from msprobe.check.core import arguments, dropout, judge, standards
from msprobe.check.core.arguments import flat_records
from msprobe.check.core.framework import FAILURES, Call, Framework, Load, NotCallable, Results, load
from msprobe.check.core.generate import NotMade
from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING, Verdict
from msprobe.check.core.measure import FORMATS, Metrics, measure_floats, measure_others
from msprobe.check.core.rounding import same_but_for_rounding, same_but_for_sums
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.dump.record_keys import INPUT, OUTPUT
from msprobe.messages import Message

MOVES = 3
RECORDED = ".recorded"
_FAILURES = (*FAILURES, NotMade)


# Eigenvalues have no fixed order, eigenvectors no fixed sign or phase.
_NOT_UNIQUE = frozenset(("linalg.eig", "eig", "eigvals", "Eig", "linalg.eigh", "linalg.eigvals")) | frozenset(
    ("linalg.svd", "svd", "pca_lowrank", "svd_lowrank")
)
_OF_BITS = frozenset(("hash_tensor",))


class Row(NamedTuple):
    """One line of the details. `metrics` is None if there was nothing to measure."""

    name: str
    bench_dtype: str
    device_dtype: str
    shape: list[int]
    metrics: Optional[Metrics]
    verdict: Verdict


@dataclass
class Outcome:
    forward: str = SKIP
    backward: str = SKIP
    message: str = ""
    rows: list[Row] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)  # name -> tensor, if error data is wanted


class Examiner:
    """Examines the calls of one worker. Its table of callables is made once."""

    def __init__(self, device: str = "cpu", keep: bool = False, framework: str = "pytorch") -> None:
        self._device = device
        self._keep = keep
        self.framework = load(framework)

    def examine(
        self, name: str, title: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], rank: RankDump
    ) -> Outcome:
        """`name` is the name of the call, `Functional.conv2d.0`. Never raises what a call may raise."""
        try:
            call = self.framework.call(title, name, forward, backward, loader(rank))
        except (NotCallable, NotMade, DumpError) as error:
            return Outcome(message=str(error))
        except _FAILURES as error:
            return Outcome(message=Message("check.no_call", error=_short(error)))
        if call.api in _NOT_UNIQUE:
            return Outcome(message=Message("check.not_unique"))
        if call.api in _OF_BITS:
            return Outcome(message=Message("check.of_bits"))
        examination = _Examination(self.framework, name, call, loader(rank))
        outcome = examination.run(self._device, forward, backward)
        if self._keep and ERROR in (outcome.forward, outcome.backward):
            outcome.kept = examination.data()
        return outcome


def loader(rank: RankDump) -> Load:
    """Reads the saved values of a tensor; None if the dump has only its statistics."""

    def load(item: dict[str, Any]) -> Any:
        name = item.get("data_name")
        if not isinstance(name, str):
            return None
        return rank.tensor(name, mmap=False)

    return load


class _Examination:
    def __init__(self, framework: Framework, name: str, call: Call, load: Load) -> None:
        self._framework, self._name, self._call, self._load = framework, name, call, load
        self._moved: Optional[list[Results]] = None
        self._again: Optional[list[Results]] = None
        self._golden: Optional[Results] = None
        self._device: Optional[Results] = None
        self._equal: tuple[str, ...] = ()  # directions in which the golden side is no better than the device
        self._explains_backward = False  # whether a note says why backward is not judged
        self._notes: list[str] = []
        self._rows: list[Row] = []

    def run(self, device: str, forward: dict[str, Any], backward: Optional[dict[str, Any]]) -> Outcome:
        try:
            golden = self._golden = self._call.golden()
        except _FAILURES as error:
            return Outcome(message=Message("check.cannot_run", side=_golden_side(), error=_short(error)))
        own: Optional[Results] = None
        try:
            own = self._device = self._call.run(device)
        except _FAILURES as error:
            self._notes.append(Message("check.cannot_run", side=device, error=_short(error)))
            self._explains_backward = True
        if golden.random:
            return self._random(golden, own, forward, backward is not None)
        self._equal = golden.weak if device == "cpu" else ()
        for where, results in ((_golden_side(), golden), (device, own)):
            if results is not None and results.no_gradients:
                self._notes.append(Message("check.no_backward_run", side=where, error=results.no_gradients))
                self._explains_backward = True
        if "forward" in self._equal or (backward is not None and self._equal):
            self._notes.append(Message("check.same_device", made=golden.made))
            self._explains_backward = "backward" in self._equal
        statuses = []
        for direction, record in (("forward", forward), ("backward", backward)):
            recorded = flat_records((record or {}).get(OUTPUT), nulls=direction == "backward")
            statuses.append(self._judge_direction(direction, golden, own, recorded))
        if backward is not None and statuses[1] == SKIP and not self._explains_backward:
            self._notes.append(Message("check.no_backward", why=self._why_no_backward(backward)))
        if not self._rows and not self._notes:
            self._notes.append(Message("check.nothing_returned"))
        return Outcome(statuses[0], statuses[1], self._said(), self._rows)

    def _said(self) -> str:
        """All notes as one."""
        notes = list(dict.fromkeys(self._notes))
        if len(notes) > 1:
            return Message("also", parts=notes)
        return notes[0] if notes else ""

    def data(self) -> dict[str, Any]:
        """All tensors of the call, by the name of their file."""
        kept = {f"{self._name}.forward.input.{n}": t for n, t in enumerate(self._call.tensors)}
        kept.update((f"{self._name}.backward.input.{n}", t) for n, t in enumerate(self._call.incoming))
        for side, results in (("device", self._device), ("golden", self._golden)):
            for direction, tensors in _directions(results):
                kept.update((f"{self._name}.{direction}.output.{n}.{side}", t) for n, t in enumerate(tensors))
        return {name: tensor for name, tensor in kept.items() if tensor is not None}

    def _judge_direction(self, direction: str, golden: Results, own: Optional[Results], recorded: list[Any]) -> str:
        right = golden.outputs if direction == "forward" else golden.gradients
        mine = None if own is None else own.outputs if direction == "forward" else own.gradients
        if direction == "backward" and (golden.no_gradients or (own is not None and own.no_gradients)):
            return SKIP
        if mine is not None and len(mine) != len(right):
            numbers = {"found": len(mine), "expected": len(right)}
            self._notes.append(Message("check.count", direction=direction, **numbers))
            return ERROR
        statuses = []
        fits = self._fits(direction, recorded, len(right))
        if not fits and right and any(_is_saved(item) for item in recorded):
            counts = {"recorded": len(recorded), "here": len(right)}
            self._notes.append(Message("check.recorded_count", direction=direction, **counts))
            statuses.append(WARNING)
        for number, expected in enumerate(right):
            if expected is None:
                continue
            slot = f"{direction}.output.{number}"
            result = mine[number] if mine is not None else None
            if result is not None:
                result = self._framework.to_host(result)
                if direction not in self._equal:
                    statuses.append(self._judge(slot, result, expected))
            right_here = result is not None and direction not in self._equal and statuses[-1] == PASS
            status = self._judge_recorded(slot, recorded[number] if fits else None, result, expected, right_here)
            if status is not None:
                statuses.append(status)
        return judge.worst(statuses)

    def _fits(self, direction: str, recorded: list[Any], count: int) -> bool:
        """Whether recorded and new results correspond by position. Adds a note if only some of them do."""
        if direction == "forward" and self._call.first_only and len(recorded) > count:
            self._notes.append(Message("check.more_results", number=len(recorded) - count))
            return True
        return len(recorded) == count

    def _judge_recorded(self, slot: str, item: Any, result: Any, expected: Any, right_here: bool) -> Optional[str]:
        """The verdict on a result that the training run saved. None if it saved nothing, or the bits of the re-run."""
        saved, status = self._load_saved(item)
        if saved is None:
            return status
        framework = self._framework
        expected = framework.stored_values(expected)  # for a sparse tensor, a file has the stored values
        result = None if result is None else framework.stored_values(result)
        if result is not None and framework.is_same(saved, result):
            return None
        status = self._judge(slot + RECORDED, saved, expected)
        if status != PASS and right_here:
            self._notes.append(Message("check.right_here"))
        return status

    def _judge(self, slot: str, device: Any, golden: Any) -> str:
        """Measures and judges one tensor. A bad verdict is checked again with golden results for changed inputs."""
        framework = self._framework
        dtype = framework.dtype(device)
        if device.shape != golden.shape:
            verdict = _other_shape(device, golden)
            metrics = None
        else:
            form = FORMATS.get(dtype)
            ours, theirs = framework.flat(device), framework.flat(framework.round_like(golden, device))
            if form is None:
                metrics = measure_others(ours, theirs)
                verdict = judge.judge_others(metrics)
            else:
                metrics = measure_floats(ours, theirs, form, standards.ulp_limit(self._call.api, dtype))
                verdict = judge.judge_floats(metrics, dtype)
            if verdict.status != PASS:
                moved = self._moved_results(slot, device)
                if moved and same_but_for_rounding(ours, theirs, moved, form, self._incoming_size(slot)):
                    verdict = Verdict(PASS, Message("check.rounding"))
                    if not self._is_repeatable(slot, golden):
                        verdict = Verdict(WARNING, Message("check.unstable"))
        return self._add_row(slot, device, golden, metrics, verdict)

    def _add_row(self, slot: str, device: Any, golden: Any, metrics: Optional[Metrics], verdict: Verdict) -> str:
        """One line of the details, and a note if the verdict is bad."""
        dtypes = self._framework.dtype_text(golden), self._framework.dtype_text(device)
        reason = "; ".join(filter(None, (verdict.reason, self._describe_golden(slot.partition(".")[0]))))
        row = Row(f"{self._name}.{slot}", *dtypes, list(device.shape), metrics, Verdict(verdict.status, reason))
        self._rows.append(row)
        if verdict.status in (ERROR, WARNING):
            head, recorded, _ = slot.partition(RECORDED)
            id = "check.recorded_slot" if recorded else "note.at"
            self._notes.append(Message(id, place=head, text=verdict.reason))
        return verdict.status

    def _describe_golden(self, direction: str) -> str:
        """How the golden result of this direction was computed, in words."""
        golden = self._golden
        return golden.made if golden is not None and (not golden.weak or direction in golden.weak) else ""

    def _moved_results(self, slot: str, device: Any) -> list[Any]:
        """Golden results for this slot, for inputs changed by at most the coarsest rounding in the call."""
        framework = self._framework
        own = FORMATS.get(framework.dtype(device))
        if self._moved is None:
            forms = [own, *(FORMATS.get(framework.dtype(one)) for one in self._call.tensors)]
            epsilon = max((form.epsilon for form in forms if form is not None), default=0.0)
            self._moved = self._move(epsilon, within=False) or self._move(epsilon, within=True)
        there = [one for one in (self._get(results, slot) for results in self._moved) if one is not None]
        return [framework.flat(framework.round_like(one, device) if own is None else one) for one in there]

    def _is_repeatable(self, slot: str, golden: Any) -> bool:
        """Whether the golden side repeats its result, except for the order of its sums. If not, it excuses no error."""
        if self._again is None:
            self._again = self._move(0.0, within=False, times=1)
        first = self._framework.flat(golden)
        again = [self._framework.flat(one) for one in (self._get(one, slot) for one in self._again) if one is not None]
        return all(same_but_for_sums(one, first, self._incoming_size(slot)) for one in again)

    def _get(self, results: Results, slot: str) -> Any:
        """The tensor of a slot. For a recorded result: the part that a tensor file has."""
        head, recorded, _ = slot.partition(RECORDED)
        direction, _, number = head.partition(".output.")
        found = (results.outputs if direction == "forward" else results.gradients)[int(number)]
        return self._framework.stored_values(found) if recorded and found is not None else found

    def _incoming_size(self, slot: str) -> float:
        """The usual size of the incoming gradients, if the slot is a gradient."""
        if slot.startswith("forward"):
            return 0.0
        sizes = [self._framework.flat(one).astype(np.float64) for one in self._call.incoming if one is not None]
        return max((float(np.sqrt(np.mean(np.square(one)))) for one in sizes if one.size), default=0.0)

    def _move(self, epsilon: float, within: bool, times: int = MOVES) -> list[Results]:
        try:
            return [self._call.moved(number, epsilon, within) for number in range(times)]
        except _FAILURES:  # for example a probability just above 1
            return []

    def _load_saved(self, item: Any) -> tuple[Any, Optional[str]]:
        """The saved tensor of a result. If it is missing: None, and WARNING if the dump should have it."""
        if not _is_saved(item):
            return None, None
        try:
            if item.get("type") not in arguments.TENSORS:
                raise NotMade(f"it is a {str(item.get('type'))[:60]}")
            return self._framework.to_tensor(self._load(item)), None
        except (DumpError, NotMade, *_FAILURES) as error:
            self._notes.append(Message("check.not_judged", error=str(error).rstrip(".")))
            return None, WARNING

    def _why_no_backward(self, backward: dict[str, Any]) -> str:
        if any(one is not None for one in self._call.incoming):
            return Message("check.no_gradient")
        given = flat_records(backward.get(INPUT), nulls=True)
        if any(one is not None for one in given):
            return Message("check.none_requires")
        return Message("check.no_output_gradient")

    def _random(self, golden: Results, own: Optional[Results], forward: dict[str, Any], has_backward: bool) -> Outcome:
        api, framework = self._call.api, self._framework
        if not dropout.is_dropout(api) or own is None:
            self._notes.append(Message("check.random"))
            return Outcome(message=self._said())
        if has_backward:
            self._notes.append(Message("check.no_backward", why=Message("check.random_elements")))
        right = framework.flat(golden.outputs[0])
        result = framework.to_host(own.outputs[0])
        share = dropout.judge_share(api, framework.flat(result), right, result.shape[0] if result.shape else 1)
        statuses = [self._add_row("forward.output.0", result, golden.outputs[0], None, share)]
        recorded = flat_records(forward.get(OUTPUT))
        for number, item in enumerate(recorded[: len(golden.outputs)]):
            saved, status = self._load_saved(item)
            if saved is not None:
                status = self._recorded_dropout(number, saved, golden.outputs[number], recorded)
            if status is not None:
                statuses.append(status)
        return Outcome(judge.worst(statuses), SKIP, self._said(), self._rows)

    def _recorded_dropout(self, number: int, saved: Any, golden: Any, recorded: list[Any]) -> str:
        framework, slot = self._framework, f"forward.output.{number}{RECORDED}"
        flat = framework.flat(saved)
        form, given = FORMATS.get(framework.dtype(saved)), framework.flat(self._call.tensors[0])
        if saved.shape != golden.shape or flat.size != given.size:
            return self._add_row(slot, saved, golden, None, _other_shape(saved, golden))
        if form is None:  # the mask of native_dropout
            first, _ = self._load_saved(recorded[0])
            verdict = Verdict(WARNING, Message("check.result_unread"))
            if first is not None:
                verdict = dropout.judge_mask(flat, framework.flat(first), given)
            return self._add_row(slot, saved, golden, None, verdict)
        share = dropout.judge_share(self._call.api, flat, framework.flat(golden), saved.shape[0] if saved.shape else 1)
        metrics = dropout.measure_kept(flat, given, framework.flat(golden), form)
        kept = judge.judge_floats(metrics, framework.dtype(saved))
        return self._add_row(slot, saved, golden, metrics, kept if kept.status != PASS else share)


def _golden_side() -> Message:
    return Message("check.golden_side")


def _other_shape(found: Any, golden: Any) -> Verdict:
    return Verdict(ERROR, Message("check.shape", found=str(list(found.shape)), golden=str(list(golden.shape))))


def _is_saved(item: Any) -> bool:
    return isinstance(item, dict) and "data_name" in item


def _directions(results: Optional[Results]) -> list[tuple[str, list[Any]]]:
    return [] if results is None else [("forward", results.outputs), ("backward", results.gradients)]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
