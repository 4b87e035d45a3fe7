"""Verdicts: is a difference more than rounding?

Tolerances come from the dtype and the length of the reduction, and from the noise seen so far. If two runs agree bit
for bit, a call may differ only by its own rounding. If they already differ by rounding (other thread counts, other
kernels), later calls may amplify this, but not jump. Upper limits prevent that slow growth hides a fault. With
`--noise`, measured noise of two golden runs replaces the guesses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Match, module_path
from msprobe.compare.judge.exemptions import Exemptions
from msprobe.compare.judge.limits import AVERAGE_CAP, COARSE, TAIL, Noise
from msprobe.compare.judge.precision import DtypePair, float_dtypes, run_wide_dtypes
from msprobe.compare.judge.presets import Preset
from msprobe.compare.judge.rounding import Context, GradientSize, epsilon_of, is_normalised_step, is_of_one_size
from msprobe.compare.judge.row_facts import (
    YOUNG,
    as_float32,
    has_gradient,
    is_alike,
    is_buffer,
    is_young,
    puts_together,
    values_of,
)
from msprobe.compare.measure import distance
from msprobe.compare.operators import UPDATE
from msprobe.compare.phases import Phase, phases_of
from msprobe.compare.reasons import Kind, Reason
from msprobe.compare.rows import ERROR, NOT_COMPARED, PASS, PASSED, WARNING, Group, Item, Judgement, Row, is_tensor
from msprobe.messages import Message

WARNING_BAND = 4.0
"""A difference of up to this many tolerances is a warning; a larger one is an error."""
NOTHING_BUT_ROUNDING = 1e-2
"""A gradient whose norm or mean differs by this much and that passes is zero except for rounding (a bias before a
normalisation)."""
NOISE_GRADIENT = 64.0 * distance.EPSILON["float32"]
"""A gradient this small, relative to the largest of the step, is zero except for rounding."""
MOST_OF_A_WEIGHT = 0.03
"""The widest limit of a weight, for any noise."""

_NOISE_ONLY = Reason(Kind.ROUNDING, Message("rounding.noise"))
_SCALED_UP = Reason(Kind.ROUNDING, Message("rounding.scaled"))
_RECOMPUTED = Judgement(NOT_COMPARED, 0.0, Reason(Kind.RECOMPUTED, Message("recomputed.once")))
_NOT_MEASURED = Judgement()


class Judge:
    """Judges the calls of one rank, in execution order, over all its steps."""

    def __init__(self, preset: Optional[Preset] = None, exact: bool = False) -> None:
        """`exact`: msprobe computed the statistics of both dumps, in full precision."""
        self._preset = preset
        self._exact = exact
        self._measured: Optional[Mapping[str, float]] = None
        self.noise = Noise()
        self.run_wide: set[DtypePair] = set()
        self._recomputed = False
        self._phase = Phase.FORWARD
        self._groups: Sequence[Group] = ()
        self._exemptions = Exemptions()
        self._noise_gradients: set[str] = set()
        self._noise_paths: set[str] = set()
        self._noise_keys: set[distance.ValueKey] = set()
        self._weights: set[distance.ValueKey] = set()
        self._accepted: set[tuple[object, ...]] = set()
        """Results that passed, with the values of both sides: they also pass where they are used."""
        self._rejected: dict[tuple[object, ...], Judgement] = {}
        """Results of calls that differ: as results of the module around the call, they differ too."""
        self._lone: dict[tuple[str, bool], Item] = {}
        """Weights of modules that only one run has, as they were at the last step, if their gradient was noise."""
        self._gradients: dict[str, GradientSize] = {}
        self._parents: set[Optional[str]] = set()
        self.other_bytes = 0
        """Rows that pass although their checksums differ: only their statistics agree."""

    def judge_step(self, groups: Sequence[Group], measured: Optional[Mapping[str, float]] = None) -> None:
        """Gives every measured row of a step its judgement; `measured` is the noise of rows between two golden runs,
        by golden name."""
        self._start_step(groups, measured)
        for (match, rows), phase in zip(groups, phases_of(groups)):
            self._phase = phase
            for row, judgement in zip(rows, self.judge(match, rows)):
                row.judgement = judgement
        self._lone = _noise_of_lone_weights(groups)

    def remember_noise(self, gradient: Row) -> None:
        """The gradient of a parameter is only rounding: the optimizer may scale it up."""
        self._remember_noise(gradient.match.call.key, gradient)

    def forget_rows(self) -> None:
        """Forgets the rows of the last step; what was learned from them stays."""
        self._groups = ()
        self._exemptions = Exemptions()

    @functools.cached_property
    def _statistics_are_exact(self) -> bool:
        """Whether the statistics show the last bit of each element. Ours do; those of other tools are rounded to
        float32."""
        if self._exact:
            return True
        for _, rows in self._groups:
            for row in rows:
                for key in ("Mean", "Norm"):
                    value = row.golden.get(key) if row.golden else None
                    if isinstance(value, float) and math.isfinite(value) and value != as_float32(value):
                        return True
        return False

    def _start_step(self, groups: Sequence[Group], measured: Optional[Mapping[str, float]]) -> None:
        self._measured = measured
        self._groups = groups
        # A run that recomputes forwards may run them without gradients the first time.
        self._recomputed = any(match.how == "unmatched" and match.call.recompute for match, _ in groups)
        self.run_wide = run_wide_dtypes(groups)
        self.noise.start_step(bool(self.run_wide))
        self._exemptions = Exemptions()
        self._parents = {call.parent for match, _ in groups for call in (match.target, match.golden) if call}
        self._weights.clear()
        self._accepted.clear()
        self._rejected.clear()
        if self.noise.at_start:
            self._look_at_weights(groups)
        for name, row in lone_weights(groups) if self._lone else ():
            before = self._lone.get(name)
            if before is not None:  # it was changed by noise
                self._allow_for(distance.of_statistics(row.target or row.golden or {}, before).distance or 0.0)

    def _look_at_weights(self, groups: Sequence[Group]) -> None:
        """Handles noise that an optimizer which normalises (Adam) scales up: rounding may change the sign of a gradient
        element near zero, and its weight then takes a full step in the other direction. The weight is exempt if its
        complete gradient is rounding; otherwise its limit allows for a few such elements."""
        for match, rows in groups:
            if match.call.kind != "module" or match.call.direction != FORWARD:
                continue
            for row in rows:
                name = row.slot.partition("parameters.")[2]
                key = distance.value_key(row.golden) if name and row.distance else None
                if key is None or row.distance is None:
                    continue
                scaled_up = distance.direction_key(row.golden) in self._noise_keys
                if scaled_up or f"{match.call.key}.{name}" in self._noise_gradients:
                    self._noise_keys.add(distance.direction_key(row.golden) or key)
                elif row.distance <= self._weight_tolerance or is_young(row):
                    self._weights.add(key)
                else:
                    continue
                self._allow_for(row.distance)

    def _allow_for(self, off: float) -> None:
        """The error of a weight is noise in everything that is computed with it."""
        self.noise.kinks = max(self.noise.kinks, min(off, MOST_OF_A_WEIGHT))
        self.noise.level = max(self.noise.level, min(off, MOST_OF_A_WEIGHT))

    @property
    def _weight_tolerance(self) -> float:
        """The share of gradient elements whose sign noise can change is about the noise; its root is their norm."""
        return min(math.sqrt(self.noise.at_start), MOST_OF_A_WEIGHT)

    def judge(self, match: Match, rows: Sequence[Row]) -> list[Judgement]:
        """The judgements of a call's rows, which are measured."""
        call = match.call
        self.noise.expect(match, rows)
        if call.kind == "module" and call.direction == BACKWARD:
            self._remember_gradient(call.key, rows)
        exempt = self._exemptions.of_call(match, rows)
        if call.key.startswith(UPDATE) and call.key.removeprefix(UPDATE) in self._noise_paths:
            places = [place for place, row in enumerate(rows) if row.distance]
            exempt = {**exempt, **dict.fromkeys(places, _SCALED_UP)}
        context: Optional[Context] = None
        found: list[Judgement] = []
        for place, row in enumerate(rows):
            away = row.measurement.distance
            if place in exempt:
                found.append(Judgement(NOT_COMPARED, 0.0, exempt[place]))
            elif away is None:
                found.append(_RECOMPUTED if call.recompute and row.absent else _NOT_MEASURED)
            elif away == 0.0:
                found.append(PASSED if is_alike(row) else self._with_properties(row, PASSED))
            elif row.measurement.reason.kind is Kind.NULL:
                found.append(Judgement(ERROR))
            elif self._noise_keys and (row.is_input or call.direction == GRADS) and self._is_noise(row):
                self._remember_noise(call.key, row)
                if self._phase is Phase.FORWARD and self.noise.at_start:
                    self._allow_for(away)  # a weight: level L1 has no modules that record it
                found.append(Judgement(NOT_COMPARED, 0.0, _NOISE_ONLY))
            elif self._preset is not None:
                found.append(Judgement(*self._preset.judge(row)))
            else:
                context = context or Context(match, rows, self._gradients, self._has_calls(match))
                judged = self._judge_difference(row, context)
                if row.is_input and judged.verdict == PASS:
                    context.accepted = max(context.accepted, away)
                context.is_misled |= row.is_input and judged.verdict != PASS
                self.other_bytes += judged.verdict == PASS and row.measurement.reason.kind is Kind.BYTES
                found.append(self._with_properties(row, judged))
        if any(one.reason.kind is Kind.GRADIENT for one in found) and not has_gradient(rows):
            found = [PASSED if one.reason.kind is Kind.GRADIENT else one for one in found]
        if self._noise_keys and any(one.verdict in (WARNING, ERROR) for one in found):
            self._excuse_noise(match, rows, found)
        return found

    def _is_noise(self, row: Row) -> bool:
        return distance.direction_key(row.golden) in self._noise_keys and (bool(self.run_wide) or is_of_one_size(row))

    def _has_calls(self, match: Match) -> bool:
        return any(call.name in self._parents for call in (match.target, match.golden) if call)

    def _judge_difference(self, row: Row, context: Context) -> Judgement:
        measurement = row.measurement
        if measurement.reason.kind is Kind.BYTES and self._statistics_are_exact:
            return Judgement(WARNING if not self.noise.level else PASS)
        if self._is_run_wide_argument(row):
            return PASSED
        if self.noise.level and context.direction == FORWARD and is_normalised_step(row):
            self._noise_keys.add(distance.direction_key(row.golden) or ())
            return Judgement(NOT_COMPARED, 0.0, _SCALED_UP)
        if context.module and not row.is_input and self._rejected:
            values = values_of(row)
            if values is not None and values in self._rejected:
                return self._rejected[values]
        measured = None if self._measured is None else self._measured.get(row.golden_name or "", 0.0)
        limits = self.noise.limits(row, context, measured)
        extreme = limits.extreme
        if self.noise.level and row.match.call.key.startswith(UPDATE) and not is_buffer(row):
            extreme = max(extreme, min(math.sqrt(self.noise.level), MOST_OF_A_WEIGHT), YOUNG if is_young(row) else 0.0)
            limits = limits._replace(average=max(limits.average, extreme))
        elif row.is_input and self._weights and distance.value_key(row.golden) in self._weights:
            extreme = max(extreme, self._weight_tolerance, YOUNG if is_young(row) else 0.0)
            limits = limits._replace(average=max(limits.average, extreme))
        elif self.run_wide and self._phase is Phase.AFTER:
            limits = limits._replace(
                average=extreme
            )  # moments and weights in a different dtype are computed from noise
        away = self._away(row, context)
        if away <= extreme and measurement.average <= limits.average and self.noise.knows(away, context):
            self._accept(row, context)
            self.noise.average = max(self.noise.average, measurement.average)
            return Judgement(PASS, extreme)
        share = 1.0 if context.is_real_in_one_run(row, self.noise.level) else context.share_of_inputs(row)
        away, average = share * away, share * measurement.average
        if context.direction == FORWARD and limits.average < extreme:
            average = measurement.average  # a small result has not always cancelled: its norm shows this
        if away <= extreme and average <= limits.average:
            self._learn(row, away, context)
            self.noise.average = max(self.noise.average, average)
            return Judgement(PASS, extreme)
        values = values_of(row) if row.is_input or context.module or context.direction == GRADS else None
        if values is not None and values in self._accepted:
            self._learn_gradient(row, context)
            return Judgement(PASS, extreme)
        within = away <= WARNING_BAND * extreme and average <= WARNING_BAND * limits.average
        judged = Judgement(WARNING if within else ERROR, extreme)
        values = values_of(row) if not row.is_input and context.direction == FORWARD else None
        if values is not None:
            self._rejected[values] = judged
        return judged

    def _away(self, row: Row, context: Context) -> float:
        """If the runs agree bit for bit, the worst element counts; with noise, the tail of the noise must not count."""
        assert row.distance is not None
        quiet = not self.noise.level and not context.has_algorithms
        if row.measured is None or quiet or row.measured.special:
            return row.distance
        return min(row.distance, TAIL * row.measured.relative_l2)

    def _learn(self, row: Row, away: float, context: Context) -> None:
        self.noise.learn(row, away, context)
        self._accept(row, context)

    def _accept(self, row: Row, context: Context) -> None:
        if not row.is_input and not context.is_misled:
            values = values_of(row)
            if values is not None:
                self._accepted.add(values)
            if context.direction != FORWARD:
                self._learn_gradient(row, context)

    def _learn_gradient(self, row: Row, context: Context) -> None:
        average = row.measurement.average
        if average <= NOTHING_BUT_ROUNDING or context.direction == FORWARD or row.is_input:
            return
        if epsilon_of(row) <= COARSE or average > AVERAGE_CAP:
            self._remember_noise(context.key, row)
            key = distance.direction_key(row.golden)
            if key is not None:
                self._noise_keys.add(key)

    def _remember_noise(self, module: str, row: Row) -> None:
        """Remembers the noise of the gradient of a parameter: the optimizer may scale it up."""
        name = row.slot.partition("parameters_grad.")[2]
        if name:
            self._noise_gradients.add(f"{module}.{name}")
            self._noise_paths.add(".".join(filter(None, (module_path(module), name))))

    def _excuse_noise(self, match: Match, rows: Sequence[Row], found: list[Judgement]) -> None:
        """Results computed from a tensor that is only rounding are only rounding: in lists of clipping and of
        optimizers, those of the same size or at the same place in the list; after the backward, all results of such a
        call; in a backward, all its results if it received no other gradient."""
        sizes, places = set(), set()
        for row, judgement in zip(rows, found):
            if judgement.reason is _NOISE_ONLY and row.golden is not None:
                sizes.add(distance.count(row.golden))
                if row.slot.startswith("input.0."):
                    places.add(row.slot.split(".")[2])
        given = [one for row, one in zip(rows, found) if row.is_input and is_tensor(row.golden)]
        linear = match.call.direction == BACKWARD and given and all(one.reason is _NOISE_ONLY for one in given)
        alone = linear or (self._phase is Phase.AFTER and sizes and not places)
        for place, (row, judgement) in enumerate(zip(rows, found)):
            if judgement.verdict not in (WARNING, ERROR) or not is_tensor(row.golden) or row.golden is None:
                continue
            parts = row.slot.split(".")
            if not row.is_input and places and row.measurement.average <= AVERAGE_CAP and puts_together(row):
                found[place] = Judgement(NOT_COMPARED, 0.0, _NOISE_ONLY)  # its extreme was already excused
                continue
            listed = row.slot.startswith(("input.", "output.")) and parts[-1] in places
            if alone or listed or (not places and distance.count(row.golden) in sizes):
                found[place] = Judgement(NOT_COMPARED, 0.0, _NOISE_ONLY)
                key = distance.direction_key(row.golden)
                if key is not None:
                    self._noise_keys.add(key)

    def _is_run_wide_argument(self, row: Row) -> bool:
        """Whether an argument is a dtype that differs in the same way as most heavy calls of the two runs."""
        if not self.run_wide or row.target is None or row.golden is None or is_tensor(row.golden):
            return False
        ours, theirs = (str(item.get("value")).rpartition(".")[2].lower() for item in (row.target, row.golden))
        return (ours, theirs) in self.run_wide

    def _with_properties(self, row: Row, judgement: Judgement) -> Judgement:
        """A row whose values pass may still differ in its dtype, or in whether it has a gradient."""
        target, golden = row.target, row.golden
        if judgement.verdict != PASS or target is None or golden is None:
            return judgement
        if target.get("dtype") != golden.get("dtype") and self._preset is None:
            pair = float_dtypes(row)
            fine = max(distance.epsilon(target), distance.epsilon(golden)) <= distance.EPSILON["float32"]
            if pair is not None and pair[0] != pair[1] and pair not in self.run_wide and not fine:
                why = Message("not", target=pair[0], golden=pair[1])
                return Judgement(WARNING, judgement.tolerance, Reason(Kind.DTYPE, why))
        ours, theirs = target.get("requires_grad"), golden.get("requires_grad")
        if ours != theirs and ours is not None and theirs is not None and not self._recomputed:
            why = Message("not", target=str(ours), golden=str(theirs))
            return Judgement(WARNING, judgement.tolerance, Reason(Kind.GRADIENT, why))
        return judgement

    def _remember_gradient(self, key: str, rows: Sequence[Row]) -> None:
        given = [r.golden for r in rows if r.is_input and r.golden and is_tensor(r.golden)]
        sizes = [GradientSize(distance.scale(item), distance.count(item)) for item in given]
        self._gradients[key] = max([self._gradients.get(key, GradientSize()), *sizes])


def lone_weights(groups: Sequence[Group]) -> Iterator[tuple[tuple[str, bool], Row]]:
    """The weights of modules that only one run has (a fused projection, or several), by name and run."""
    for match, rows in groups:
        if match.how == "unmatched" and match.call.kind == "module" and match.call.direction == FORWARD:
            for row in rows:
                if row.slot.startswith("parameters."):
                    yield (f"{match.call.key}.{row.slot.partition('.')[2]}", match.target is None), row


def _noise_of_lone_weights(groups: Sequence[Group]) -> dict[tuple[str, bool], Item]:
    """Those whose gradient is only rounding: an optimizer that normalises (Adam) scales it up."""
    lone = {name: row.target or row.golden for name, row in lone_weights(groups)}
    if not lone:
        return {}
    sizes: dict[tuple[str, bool], float] = {}
    for match, rows in groups:
        for row in rows if match.call.direction == GRADS else ():
            name = f"{match.call.key}.{row.slot.removeprefix('parameters_grad.')}", match.target is None
            sizes[name] = distance.scale(row.golden or row.target or {})
    most = max(sizes.values(), default=0.0)
    return {name: item for name, item in lone.items() if 0.0 < sizes.get(name, 0.0) <= NOISE_GRADIENT * most}
