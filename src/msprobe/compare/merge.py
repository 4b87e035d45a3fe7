"""Another tensor-parallel layout: the shards of several ranks as one tensor.

How shards belong together is told by the shapes, row by row: the shape of the other side on every axis but one means
that they are concatenated there; the same shape means a copy on every rank, or partial sums where the copies differ.
A YAML of `{pattern of a row's name: same | sum | concat AXIS}` goes before that. Ranks are grouped in consecutive
numbers, as tensor-parallel groups are.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from msprobe.compare.align.mapping import read_mapping
from msprobe.compare.calls import Match
from msprobe.compare.inputs import Pair, Source
from msprobe.compare.measure.distance import count, number, value_key
from msprobe.compare.measure.shards import ShardFiles
from msprobe.compare.reasons import NO_REASON, Kind, Reason
from msprobe.compare.rows import Group, Item, Row, is_tensor, slots_of
from msprobe.dump.errors import DumpError

Shard = tuple[Source, Item]
Slots = tuple[Source, dict[tuple[str, str], Item]]


class Rule(NamedTuple):
    """`kind` is same, sum or concat; `axis` is for concat."""

    kind: str
    axis: int = 0

    @property
    def text(self) -> str:
        return f"{self.kind} {self.axis}" if self.kind == "concat" else self.kind


@dataclass(frozen=True)
class Merge:
    """One group of ranks on each side, and the user's rules."""

    target: tuple[Source, ...]
    golden: tuple[Source, ...]
    rules: Mapping[str, Rule] = field(default_factory=dict)


def load_rules(text: str) -> dict[str, Rule]:
    """`tp` means that shapes decide; anything else is a YAML file."""
    if text == "tp":
        return {}
    return {pattern: _rule(value, text) for pattern, value in read_mapping(Path(text)).items()}


def _rule(value: str, where: str) -> Rule:
    kind, _, axis = value.partition(" ")
    if kind in ("same", "sum") and not axis:
        return Rule(kind)
    if kind == "concat" and axis.strip().isdigit():
        return Rule(kind, int(axis))
    raise DumpError(f"{where}: the rule {value!r} is none of: same, sum, concat AXIS.")


def group_ranks(pairs: Pair[list[Source]], rules: Mapping[str, Rule]) -> list[Merge]:
    """Per step, consecutive ranks that stand for one rank of the smaller side."""
    merges = []
    for step in dict.fromkeys(source.step for source in pairs.target):
        ours = [source for source in pairs.target if source.step == step]
        theirs = [source for source in pairs.golden if source.step == step]
        if not theirs:
            continue
        groups = math.gcd(len(ours), len(theirs))
        wide, narrow = len(ours) // groups, len(theirs) // groups
        for index in range(groups):
            merges.append(
                Merge(
                    tuple(ours[index * wide : (index + 1) * wide]),
                    tuple(theirs[index * narrow : (index + 1) * narrow]),
                    rules,
                )
            )
    return merges


class Merged(NamedTuple):
    """A row with its merged tensors, or why it cannot be merged; `shards` is empty for rows that need no merging."""

    row: Row
    shards: Optional[Pair[list[Shard]]] = None
    obstacle: Reason = NO_REASON


def merge_rows(groups: Sequence[Group], merge: Merge) -> list[tuple[Match, list[Merged]]]:
    """Each row with the merged tensors in place of the first rank's."""
    known = Pair(_by_slot(merge.target), _by_slot(merge.golden))
    return [(match, [_merge_row(match, row, known, merge.rules) for row in rows]) for match, rows in groups]


def _merge_row(match: Match, row: Row, known: Pair[list[Slots]], rules: Mapping[str, Rule]) -> Merged:
    if row.absent or not is_tensor(row.target) or not is_tensor(row.golden):
        return Merged(row)
    assert match.target is not None
    assert match.golden is not None
    shards = Pair(
        [(source, items.get((match.target.name, row.slot))) for source, items in known.target],
        [(source, items.get((match.golden.name, row.golden_slot))) for source, items in known.golden],
    )
    rule = _rule_of(row, shards, rules)
    if isinstance(rule, Reason):
        return Merged(row, obstacle=rule)
    ours, theirs = _join(shards.target, rule), _join(shards.golden, rule)
    return Merged(Row(match, row.slot, row.golden_slot, ours, theirs, merged=rule.text), shards)


def _by_slot(sources: Sequence[Source]) -> list[Slots]:
    return [
        (source, {(name, slot): item for name, record in source.records.items() for slot, item in slots_of(record)})
        for source in sources
    ]


def _rule_of(row: Row, shards: Pair[list[Shard]], rules: Mapping[str, Rule]) -> Union[Rule, Reason]:
    for side, name in ((shards.target, "target"), (shards.golden, "golden run")):
        lacking = [source for source, item in side if item is None or not is_tensor(item)]
        if lacking:
            return Reason(Kind.UNMATCHED, f"{lacking[0].label} of the {name} has no such item")
    for pattern, rule in rules.items():
        if fnmatch.fnmatchcase(row.name, pattern):
            return rule
    ours, theirs = (_shape(side[0][1]) for side in (shards.target, shards.golden))
    if len(ours) == len(theirs):
        axes = [axis for axis in range(len(ours)) if ours[axis] != theirs[axis]]
        if not axes:
            return Rule("same") if _copies(shards.target) and _copies(shards.golden) else Rule("sum")
        if len(axes) == 1 and _total(shards.target, axes[0]) == _total(shards.golden, axes[0]):
            return Rule("concat", axes[0])
    return Reason(Kind.SHAPE, f"shards {list(ours)} and {list(theirs)} fit in no way; give a rule in --merge FILE")


def _shape(item: Item) -> list[int]:
    assert item is not None
    return list(item["shape"])


def _total(side: list[Shard], axis: int) -> int:
    return sum(_shape(item)[axis] for _, item in side)


def _copies(side: list[Shard]) -> bool:
    return len({value_key(item) for _, item in side}) == 1


def _join(side: list[Shard], rule: Rule) -> dict[str, Any]:
    """The merged tensor's description: exact for copies and concatenation, unknown statistics for sums."""
    first = side[0][1]
    assert first is not None
    if len(side) == 1 or rule.kind == "same":
        return first
    merged = {key: value for key, value in first.items() if key not in ("md5", "Max", "Min", "Mean", "Norm")}
    if rule.kind == "sum":
        return merged
    items = [item for _, item in side if item is not None]
    merged["shape"] = _shape(first)
    merged["shape"][rule.axis] = _total(side, rule.axis)
    columns = {key: [number(item.get(key)) for item in items] for key in ("Max", "Min", "Mean", "Norm")}
    if any(None in values for values in columns.values()):
        return merged
    known: dict[str, list[float]] = {key: [v for v in values if v is not None] for key, values in columns.items()}
    sizes = [count(item) for item in items]
    merged["Max"], merged["Min"] = max(known["Max"]), min(known["Min"])
    merged["Mean"] = sum(mean * size for mean, size in zip(known["Mean"], sizes)) / max(sum(sizes), 1)
    merged["Norm"] = math.sqrt(sum(norm * norm for norm in known["Norm"]))
    return merged


def shard_files(shards: Pair[list[Shard]], rule: str) -> Optional[ShardFiles]:
    """The saved tensors of a row's shards; None where not every rank saved one."""
    kind, _, axis = rule.partition(" ")
    sides = []
    for side in (shards.target, shards.golden):
        names = [(source, (item or {}).get("data_name")) for source, item in side]
        if not all(name for _, name in names):
            return None
        sides.append(tuple(source.tensor_path(name) for source, name in names if name))
    return ShardFiles(sides[0], sides[1], kind, int(axis or 0))
