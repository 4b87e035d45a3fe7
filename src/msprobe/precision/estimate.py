"""How much of each operand a format loses, which modules stay below a budget, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import numpy as np

from msprobe.config.errors import suggest
from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.dump.products import WEIGHTS
from msprobe.dump.reader import Dump, RankDump
from msprobe.dump.record_keys import DAMAGE
from msprobe.messages import Message
from msprobe.precision.operands import Operand, operands
from msprobe.stats.damage import Damage, measure_formats, read_damage, usual_damage, worst_of
from msprobe.stats.formats import BY_NAME, Format

BELOW_USUAL = 6.0
"""Without a budget, a module may lose this many dB more than normally distributed numbers do."""

_LARGE = 50.0

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass(frozen=True)
class Row:
    """The worst tensor of one role in one place: over all calls, steps, ranks and orientations."""

    format: str
    place: str
    module: str
    role: str
    call: str
    slot: str
    where: str
    dtype: str
    shape: tuple[int, ...]
    damage: Damage

    def as_record(self) -> dict[str, Any]:
        return {
            "format": self.format, "place": self.place, "module": self.module, "role": self.role, "call": self.call,
            "slot": self.slot, "where": self.where, "dtype": self.dtype, "shape": list(self.shape),
            **self.damage.as_record(),
        }  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The rows of one format, the most damaged first, and the budget that they are judged by."""

    form: Format
    budget: float
    usual: Damage
    rows: list[Row]

    @property
    def below(self) -> list[Row]:
        """The rows that miss the budget."""
        return [row for row in self.rows if row.damage.level < self.budget]

    @property
    def keep(self) -> list[str]:
        """The places to keep in bf16, the most damaged first. All others meet the budget."""
        return list(dict.fromkeys(row.place for row in self.below))

    @property
    def keep_modules(self) -> list[str]:
        """The paths of the modules of `keep`, for configurations; a call outside of any module has none."""
        return list(dict.fromkeys(row.module for row in self.below if row.module))

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(row.place for row in self.rows))

    @property
    def noise(self) -> float:
        """The mean noise-to-signal ratio of the rows: one number for the complete model in this format."""
        ratios = [10 ** (-row.damage.level / 10) if row.damage.level != -math.inf else math.inf for row in self.rows]
        return sum(ratios) / len(ratios) if ratios else 0.0


@dataclass
class Estimate:
    """One verdict per format, and notes about what could not be measured."""

    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 1 if any(verdict.below for verdict in self.verdicts) else 0


def estimate(dump: Dump, forms: Sequence[Format], budget: Optional[float], progress: Progress) -> Estimate:
    """Measures the operands of all products of a dump. Raises DumpError if there is nothing to measure."""
    meter = _Meter(forms)
    notes = list(dump.notes)
    for rank in progress(dump.ranks, len(dump.ranks), "measuring"):
        try:
            found = list(operands(rank))
        except DumpError as error:
            notes.append(str(error).rstrip("."))
            continue
        for operand in progress(found, len(found), "measuring"):
            meter.add(rank, operand)
        rank.forget()
    if not meter.rows:
        raise DumpError(meter.explain_nothing(dump))
    verdicts = [_judge(form, budget, meter) for form in forms]
    return Estimate(verdicts, [*notes, *meter.notes(), *_not_finite(verdicts)])


def _not_finite(verdicts: Sequence[Verdict]) -> list[str]:
    """A note about NaN and infinity: no format is judged by them."""
    found = {(row.place, row.role) for verdict in verdicts for row in verdict.rows if row.damage.not_finite}
    if not found:
        return []
    place, role = min(found)
    if len(found) == 1:
        return [Message("precision.not_finite", place=place, role=role)]
    return [Message("precision.not_finite_more", place=place, role=role, more=len(found) - 1)]


def _judge(form: Format, budget: Optional[float], meter: _Meter) -> Verdict:
    rows = [row for (name, _, _), row in meter.rows.items() if name == form.name]
    usual = usual_damage(form)
    rows.sort(key=lambda row: (row.damage.level, row.damage.worst))
    return Verdict(form, usual.level - BELOW_USUAL if budget is None else budget, usual, rows)


class _Meter:
    """Measures operands, each file once, and keeps the worst of each place and role."""

    def __init__(self, forms: Sequence[Format]) -> None:
        self._forms = forms
        self._known: dict[tuple[Any, ...], dict[str, list[Damage]]] = {}
        self._without_tensor = 0
        self._unread: list[str] = []
        self._not_measured: set[str] = set()
        self.rows: dict[tuple[str, str, str], Row] = {}

    def add(self, rank: RankDump, operand: Operand) -> None:
        recorded = operand.item.get(DAMAGE)
        live = recorded if isinstance(recorded, dict) else {}
        name = operand.item.get("data_name")
        for form in self._forms:
            if form.name in live:
                self._keep(rank, operand, form, read_damage(live[form.name]))
            elif isinstance(name, str):
                self._keep(rank, operand, form, self._measure(rank, name, operand).get(form.name, []))
            else:
                self._without_tensor += 1
                if live:
                    self._not_measured.add(form.name)

    def _measure(self, rank: RankDump, name: str, operand: Operand) -> dict[str, list[Damage]]:
        weight = operand.role == WEIGHTS
        try:
            status = rank.tensor_path(name).stat()
            key = (status.st_dev, status.st_ino, weight, operand.channels_first)
            if key not in self._known:
                values = rank.tensor(name)
                if operand.channels_first and values.ndim > 2:
                    values = np.moveaxis(values, 1, -1)
                self._known[key] = measure_formats(values, self._forms, weight)
            return self._known[key]
        except (DumpError, OSError) as error:
            self._unread.append(str(error).rstrip("."))
            return {}

    def _keep(self, rank: RankDump, operand: Operand, form: Format, damages: list[Damage]) -> None:
        if not damages:
            return
        damage = worst_of(damages)
        key = (form.name, operand.place, operand.role)
        known = self.rows.get(key)
        if known is None or damage.level < known.damage.level:
            shape = tuple(operand.item.get("shape") or ())
            dtype = str(operand.item.get("dtype")).rpartition(".")[2]
            self.rows[key] = Row(
                form.name, operand.place, operand.module, operand.role, operand.call, operand.slot, rank.label, dtype,
                shape, damage,
            )  # fmt: skip

    def explain_nothing(self, dump: Dump) -> str:
        wanted = ", ".join(f'"{form.name}"' for form in self._forms)
        if self._unread:
            return f"No tensor can be measured: {self._unread[0]}."
        if self._not_measured:
            return (
                f"{dump.path} was collected with different formats: it has no numbers for {wanted} and no tensors. "
                f'Collect it again with "precision": {{"formats": [{wanted}]}} in config.json.'
            )
        if self._without_tensor:
            return (
                f"{dump.path} has no saved tensors. Collect it with task tensor, or with task statistics and "
                f'"precision": {{"formats": [{wanted}]}} in config.json.'
            )
        return (
            f"{dump.path} has no matrix product: no module with a weight matrix and no call such as linear, conv2d or "
            "matmul was recorded. Collect level L0, L1 or mix, without a list or a scope that leaves them out."
        )

    def notes(self) -> list[str]:
        found: list[str] = []
        if self._unread:
            found.append(Message("precision.unread", number=len(self._unread), first=str(self._unread[0])))
        if self._without_tensor:
            found.append(Message("precision.without_tensor", number=self._without_tensor))
        return found


def formats_of(text: str) -> list[Format]:
    """The formats of a list with commas. Raises DumpError for an unknown name, with the known ones."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BY_NAME]
    if unknown or not names:
        found = f"{unknown[0]!r} is not a format" if unknown else "no format was given"
        nearest = suggest(unknown[0], BY_NAME) if unknown else ""
        raise DumpError(f"{found}; {f'did you mean {nearest}? ' if nearest else ''}known: {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in dict.fromkeys(names)]


def budget_of(text: str) -> float:
    """`20dB` or `20`. Raises DumpError for anything else."""
    number = text.strip().lower().removesuffix("db").strip()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DumpError(f"--budget takes a number of decibels such as 20dB, not {text!r}")
    return value


def reason(damage: Damage, usual: Damage) -> str:
    """What hurts this tensor more than normally distributed numbers, as it was measured; empty if nothing does."""
    parts = []
    if damage.snr == -math.inf:
        parts.append(f"{_share(damage.saturated)} become infinite")
    elif _stands_out(damage.saturated, usual.saturated):
        parts.append(f"{_share(damage.saturated)} saturate")
    if _stands_out(damage.underflow, usual.underflow):
        parts.append(f"{_share(damage.underflow)} become zero")
    if damage.outlier == math.inf:
        parts.append("most of the block of the largest element is zero")
    elif damage.outlier >= _LARGE:
        parts.append(f"the largest is {damage.outlier:.0f} times the median of its block")
    if damage.not_finite:
        parts.append(f"{count(damage.not_finite, 'element')} NaN or infinite, left out")
    return "; ".join(parts)


def _stands_out(share: float, usual: float) -> bool:
    return share > 1.5 * usual + 0.01


def _share(value: float) -> str:
    return f"{100 * value:.2g}%" if value < 0.0995 else f"{100 * value:.0f}%"
