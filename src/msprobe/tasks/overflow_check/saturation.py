"""overflow_check: casts to a dtype without infinity, which turn every value that is too large into the largest number.

Nothing after such a cast shows NaN or infinity: only the values before it tell that something was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from msprobe.dump.plural import count

_SHOWN = 10


@dataclass
class _Casts:
    calls: int = 0
    values: int = 0
    infinite: int = 0
    peak: float = 0.0


class Saturations:
    """Counts by the place of the cast and its dtype."""

    def __init__(self) -> None:
        self._casts: dict[tuple[str, str], _Casts] = {}

    def add(self, place: str, dtype: str, values: int, infinite: int, peak: float) -> None:
        """A cast whose result has the largest number in place of `values` larger ones, `infinite` of them infinite.
        `peak` is the largest finite one."""
        entry = self._casts.setdefault((place, dtype), _Casts())
        entry.calls += 1
        entry.values += values
        entry.infinite += infinite
        entry.peak = max(entry.peak, peak)

    def messages(self, largest: dict[str, float]) -> list[str]:
        """One message for all casts of the run, the first ones first; none without a saturating cast."""
        if not self._casts:
            return []
        values, calls = sum(one.values for one in self._casts.values()), sum(one.calls for one in self._casts.values())
        lines = []
        for (place, dtype), one in list(self._casts.items())[:_SHOWN]:
            what = f"{count(one.values, 'value')} in {count(one.calls, 'cast')} to {dtype} became {largest[dtype]:g}"
            before = [f"up to {one.peak:.4g} before it"] if one.peak else []
            before += [f"{one.infinite} infinite"] if one.infinite else []
            lines.append(f"{place}: {what} ({', '.join(before)})")
        if len(self._casts) > _SHOWN:
            lines.append(f"and {len(self._casts) - _SHOWN} more places")
        head = (
            f"overflow_check: {count(values, 'value')} saturated in {count(calls, 'cast')}; no NaN or infinity shows it"
        )
        return ["\n  ".join([f"{head}:", *lines])]
