"""Runs one recorded call several times from its saved inputs, and once with wider floats.

It says whether the call is deterministic, how far its result is from the wider one in units of the last place, and,
with a second dump, whose recorded result is nearer to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.analyze.replay import all_saved, call_of, first_line
from msprobe.check.core import framework
from msprobe.check.core.examine import loader
from msprobe.check.core.framework import FAILURES, Framework, NotCallable
from msprobe.check.core.generate import NotMade
from msprobe.dump.errors import DumpError
from msprobe.dump.names import forward_of, is_module, parse_api_name
from msprobe.dump.reader import RankDump, items
from msprobe.stats.dtypes import BY_NAME


@dataclass(frozen=True)
class Part:
    """One tensor of the result. The numbers are the largest distances from the result with wider floats, in units of
    the last place: of the result here, of the recorded one, and of that of the golden dump; None if there is none."""

    slot: str
    dtype: str
    here: Optional[float]
    recorded: Optional[float]
    golden: Optional[float]

    @property
    def nearer(self) -> str:
        """Whose recorded result is nearer to the one with wider floats."""
        if self.recorded is None or self.golden is None:
            return ""
        if self.recorded == self.golden:
            return "both alike"
        return "the target" if self.recorded < self.golden else "the golden run"


@dataclass(frozen=True)
class Repetition:
    """`results` is the number of different results in `times` runs. `threads`: that an operator may use here."""

    times: int
    results: int
    device: str
    parts: tuple[Part, ...]
    threads: Optional[int] = None


def repeat_record(
    rank: RankDump, name: str, times: int, device: str = "cpu", golden: Optional[tuple[RankDump, str]] = None
) -> Repetition:
    """Raises DumpError with the reason if the call cannot run here."""
    if is_module(name):
        raise DumpError(
            f"{name} is a module, and a dump has no code of modules: give the script that makes it, with --run "
            "SCRIPT and its arguments at the end of the command"
        )
    parsed = parse_api_name(name)
    forward = rank.records.get(forward_of(name))
    if parsed is None or not isinstance(forward, dict):
        raise DumpError(f"{name} is not an API with its forward in the dump; collect at level L1 or mix")
    backward = rank.records[name] if parsed.direction == "backward" else None
    known = framework.load(str(rank.head.get("framework")))
    try:
        all_saved(forward)
        call = call_of(known, rank, parsed.title, name, forward, backward)
        found = []
        for _ in range(times):
            done = call.run(device)
            found.append(done.outputs if backward is None else done.gradients)
        wide = call.golden()
    except (NotMade, NotCallable) as error:
        raise DumpError(f"{name} cannot be replayed: {error}") from None
    except FAILURES as error:
        raise DumpError(f"{name} cannot be replayed here: {first_line(error)}") from None
    different: list[list[Any]] = []
    for one in found:
        if not any(_same(known, one, other) for other in different):
            different.append(one)
    best = wide.outputs if backward is None else wide.gradients
    recorded = _recorded(known, rank, name)
    others = _recorded(known, *golden) if golden is not None else {}
    parts = [
        _part(known, f"output.{number}", one, right, recorded, others)
        for number, (one, right) in enumerate(zip(found[0], best))
        if one is not None and right is not None
    ]
    return Repetition(times, len(different), device, tuple(parts), known.threads())


def _same(known: Framework, one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        (a is None and b is None) or (a is not None and b is not None and known.is_same(a, b))
        for a, b in zip(one, other)
    )


def _recorded(known: Framework, rank: RankDump, name: str) -> dict[str, Any]:
    """The saved results of a call, by slot."""
    load, found = loader(rank), {}
    for slot, item in items(rank.records.get(name) or {}):
        value = load(item) if slot.startswith("output.") and isinstance(item, dict) else None
        if value is not None:
            found[slot] = known.to_tensor(value)
    return found


def _part(known: Framework, slot: str, own: Any, right: Any, recorded: dict[str, Any], others: dict[str, Any]) -> Part:
    dtype = known.dtype(own)
    wide = np.asarray(known.flat(known.to_host(right)), dtype=np.float64)

    def distance(tensor: Any) -> Optional[float]:
        if tensor is None:
            return None
        return ulps(np.asarray(known.flat(known.to_host(tensor)), dtype=np.float64), wide, dtype)

    return Part(slot, dtype, distance(own), distance(recorded.get(slot)), distance(others.get(slot)))


def ulps(values: Any, wide: Any, dtype: str) -> Optional[float]:
    """The largest distance in units of the last place of this dtype; None for integers and other shapes."""
    row = BY_NAME.get(dtype)
    if row is None or not row.mantissa or values.shape != wide.shape:
        return None
    smallest = row.smallest_normal or 1e-300
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(wide), smallest)
        spacing = np.exp2(np.floor(np.log2(size)) - row.mantissa)
        alike = (values == wide) | (np.isnan(values) & np.isnan(wide))
        found = np.where(alike, 0.0, np.abs(values - wide) / spacing)
    found[np.isnan(found)] = np.inf  # a NaN or infinity against something else
    return float(np.max(found, initial=0.0))
