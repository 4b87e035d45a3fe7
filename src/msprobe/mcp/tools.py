"""What an agent can ask. Read-only; every path must lie under one of the roots, with all links resolved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.compare import Comparison, compare
from msprobe.compare.calls import Call
from msprobe.compare.flow.graph import Graph, Value
from msprobe.compare.next_config import next_config
from msprobe.compare.result import UnitResult
from msprobe.compare.row_query import parse_where, records_of, select
from msprobe.dump.errors import DumpError
from msprobe.dump.items import items
from msprobe.dump.reader import Dump, RankDump, open_dump
from msprobe.dump.untrusted.regular_files import is_inside
from msprobe.messages import beside

_MOST_ELEMENTS = 400
_MOST_COUNTED = 1 << 26
_AROUND = 4
_KEPT = 4


class Tools:
    """The answers, as plain values. Raises DumpError with one sentence for bad input."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [Path(root).resolve() for root in roots]
        self._comparisons: dict[tuple[Path, Path], Comparison] = {}

    def open(self, path: str) -> dict[str, Any]:
        """What a dump has: steps, ranks, task, level, number of records."""
        dump = self._dump(path)
        ranks = [
            {"rank": rank.label, "records": len(rank.records), "notes": rank.troubles,
             **{key: rank.head.get(key) for key in ("task", "level", "framework")}}
            for rank in dump.ranks
        ]  # fmt: skip
        return {"path": str(dump.path), "notes": dump.notes, "ranks": ranks}

    def answer(self, target: str, golden: str) -> dict[str, Any]:
        """Where two runs start to differ."""
        return self._compare(target, golden).summary()

    def why(self, target: str, golden: str, call: str = "") -> dict[str, Any]:
        """The evidence for one call, by default the origin: values of both sides, what made its arguments and what
        uses its results, the calls around it, its stack."""
        comparison = self._compare(target, golden)
        origin = comparison.origin
        name = call or (origin.name if origin is not None else "")
        if not name:
            raise DumpError("The runs do not differ; give the name of a call.")
        for unit in comparison.units:
            if not call and origin is not None and unit.step != origin.step:
                continue
            names = [match.call.name for match, _ in unit.groups]
            found = next((place for place, one in enumerate(names) if one == name or name.startswith(f"{one}.")), None)
            if found is None:
                continue
            match, rows = unit.groups[found]
            stacks = [stack.get(one.name, [])[:_AROUND] if one else [] for stack, one in
                      zip(unit.stacks, (match.target, match.golden))]  # fmt: skip
            around = unit.groups[max(0, found - _AROUND) : found + _AROUND + 1]
            return {
                "call": names[found],
                "at": unit.label,
                "module": match.call.parent,
                "values": [record for record in records_of(comparison) if record["id"].startswith(
                    f"{unit.label}/{names[found]}.")][: len(rows)],
                "target_flow": _flow(unit, False, match.target),
                "golden_flow": _flow(unit, True, match.golden),
                "target_stack": stacks[0],
                "golden_stack": stacks[1],
                "around": [{"call": one.call.name, "verdicts": sorted({row.verdict for row in its})}
                           for one, its in around],
            }  # fmt: skip
        raise DumpError(f"No compared call has the name {name!r}; list names with the tool rows.")

    def rows(
        self,
        target: str,
        golden: str,
        where: Optional[list[str]] = None,
        verdicts: Optional[list[str]] = None,
        limit: int = 20,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Rows of a comparison by filter, in pages."""
        records = records_of(self._compare(target, golden))
        page = select(records, parse_where(where or []), verdicts or [], max(1, min(limit, 200)), max(0, offset))
        return {"rows": page.rows, "total": page.total, "next": page.next}

    def record(self, path: str, name: str) -> dict[str, Any]:
        """Everything that a dump recorded of one call."""
        rank = self._rank_with(path, name)
        return {"rank": rank.label, "name": name, "record": rank.records[name], "stack": rank.stacks.get(name, [])}

    def tensor(self, path: str, name: str, slot: str, start: int = 0, bins: int = 0) -> dict[str, Any]:
        """Elements of a saved tensor from `start` in memory order, or with `bins` its histogram."""
        rank = self._rank_with(path, name)
        item = dict(items(rank.records[name])).get(slot)
        if not isinstance(item, dict) or not isinstance(item.get("data_name"), str):
            raise DumpError(f"{name} has no saved tensor {slot!r}; collect with task tensor.")
        array = np.asarray(rank.tensor(item["data_name"]))
        flat = array.reshape(-1)
        told = {"shape": list(array.shape), "dtype": str(item.get("dtype"))}
        if bins > 0:
            if flat.size > _MOST_COUNTED:
                raise DumpError(f"{name} {slot} has {flat.size} elements, too many for a histogram; read parts of it.")
            values = flat.astype(np.float64)
            finite = values[np.isfinite(values)]
            counts, edges = np.histogram(finite, bins=min(bins, 50))
            return {**told, "not_finite": int(values.size - finite.size), "counts": counts.tolist(),
                    "edges": edges.tolist()}  # fmt: skip
        place = max(0, start)
        part = flat[place : place + _MOST_ELEMENTS]
        return {**told, "start": place, "elements": part.astype(np.float64).tolist(), "size": int(flat.size)}

    def overflow(self, path: str) -> dict[str, Any]:
        """The first call of a dump that produced NaN or infinity."""
        from msprobe.analyze.overflow import analyse

        found = analyse(self._dump(path).ranks)
        keys = ("name", "module", "direction", "step", "rank", "source")
        producer = None if found.producer is None else {key: getattr(found.producer, key) for key in keys}
        said = {"sentence": found.sentence, "notes": found.notes}
        return {"producer": producer, "overflows": len(found.overflows), **said, **beside(said, "sentence", "notes")}

    def precision(self, path: str, formats: str, budget: str = "") -> dict[str, Any]:
        """What low-precision formats would do to the products of a dump, the most damaged first."""
        from msprobe.precision.estimate import budget_of, estimate, formats_of
        from msprobe.report.precision_terminal import as_json

        dump = self._dump(path)
        found = estimate(dump, formats_of(formats), budget_of(budget) if budget else None, lambda things, *_: things)
        return as_json(dump.path, found)

    def timeline(self, path: str) -> dict[str, Any]:
        """The alarms of a watched run, in the order in which they began."""
        from msprobe.watch.reading.run import Run

        watched = Run(self._path(path))
        try:
            return {"alarms": [alarm.as_json() for alarm in watched.alarms()]}
        finally:
            watched.close()

    def next_config(self, target: str, golden: str) -> dict[str, Any]:
        """A config.json for the next run, which collects the tensors of the suspects only."""
        return next_config(self._compare(target, golden))

    def _path(self, path: str) -> Path:
        found = Path(path) if Path(path).is_absolute() else self._roots[0] / path
        if "\0" in path or not any(is_inside(found, root) for root in self._roots):
            raise DumpError(
                f"{path!r} is not under {', '.join(map(str, self._roots))}; start the server with that root."
            )
        return found

    def _dump(self, path: str) -> Dump:
        return open_dump(self._path(path))

    def _rank_with(self, path: str, name: str) -> RankDump:
        for rank in self._dump(path).ranks:
            if name in rank.records:
                return rank
        raise DumpError(f"{path} has no record {name[:200]!r}.")

    def _compare(self, target: str, golden: str) -> Comparison:
        pair = (self._path(target), self._path(golden))
        if pair not in self._comparisons:
            while len(self._comparisons) >= _KEPT:
                self._comparisons.pop(next(iter(self._comparisons)))
            self._comparisons[pair] = compare(*pair)
        return self._comparisons[pair]


def _flow(unit: UnitResult, golden: bool, call: Optional[Call]) -> dict[str, list[dict[str, Any]]]:
    """For one call: which call made each argument, and which calls use each result. For a backward: the same of the
    values whose gradients it received and returned."""
    if call is None:
        return {}
    identity = any("value_id" in ((row.golden if golden else row.target) or {}) for row in unit.rows())
    graph = Graph(unit.groups, golden, identity)
    step = graph.steps.get(call.name) or graph.backward.get(call.name)
    if step is None:
        return {}
    takes = [{"slot": part.slot, "made_by": _maker(part.value)} for part in step.takes]
    gives = [
        {"slot": part.slot, "used_by": [use.call.name for use in part.value.uses][:_AROUND]}
        for part in (*step.results, *step.gives)
    ]
    return {"takes": takes, "gives": gives}


def _maker(value: Optional[Value]) -> Optional[str]:
    """The call that made this value, or the one in whose memory it lies (an unrecorded view); None: no recorded one."""
    while value is not None:
        if value.maker is not None:
            return value.maker.call.name
        value = value.source
    return None
