"""The two dumps of a comparison: opened, their steps and ranks paired, their runs' headers compared.

If two runs cannot be compared, the user learns it before the work begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.graph_source import open_graph_dump
from msprobe.compare.layout.deciding import check_ranks, other_layout
from msprobe.compare.reasons import SIDES
from msprobe.compare.sources import Pair, Source
from msprobe.dump.errors import DumpError
from msprobe.dump.nearby import explain_missing
from msprobe.dump.reader import open_dump
from msprobe.messages import Message


@dataclass(frozen=True)
class Inputs:
    """What is compared with what, and what the user must know before the result.

    `gaps` are further notes, which say what is missing from the comparison; `other_steps` says that two different steps
    are compared, which differ by what training did. `joins` are the steps whose ranks are compared as one, because the
    layouts differ; then `pairs` is empty.
    """

    pairs: list[Pair[Source]]
    notes: list[Message]
    gaps: list[Message]
    joins: list[Pair[list[Source]]]
    other_steps: Optional[Message] = None


def open_inputs(
    target: Path,
    golden: Path,
    steps: Optional[Sequence[int]] = None,
    ranks: Optional[Sequence[int]] = None,
    join: bool = False,
) -> Inputs:
    """Raises DumpError if a path is not a dump, or nothing can be paired. `join` always compares the ranks of a step as
    one."""
    notes: list[Message] = []
    gaps: list[Message] = []
    sides = Pair(
        _wanted(target, open_sources(target, gaps), steps, ranks),
        _wanted(golden, open_sources(golden, gaps), steps, ranks),
    )
    joins = [] if ranks and not join else _joined(sides, Pair(target, golden), notes, gaps, join)
    pairs = [] if joins else _paired(sides, notes, gaps)
    if not pairs and not joins:
        raise DumpError(
            f"The two dumps have no step and rank in common: {target} has {_listed(sides.target)}, "
            f"{golden} has {_listed(sides.golden)}. Give the two step or rank directories to compare them anyway."
        )
    first = pairs[0] if pairs else Pair(joins[0].target[0], joins[0].golden[0])
    notes += header_notes(first.target.run, first.golden.run, joined=bool(joins))
    return Inputs(pairs, notes, gaps, joins, _other_steps([first]))


def _joined(
    sides: Pair[list[Source]], paths: Pair[Path], notes: list[Message], gaps: list[Message], join: bool
) -> list[Pair[list[Source]]]:
    """The steps of two runs in different layouts; empty if the ranks simply pair.

    A rank directory that the user names is compared as it is. If only some steps lack a rank, it counts as missing
    there."""
    if not join and any(len(side) == 1 and side[0].path == path for side, path in _with_paths(sides, paths)):
        return []
    steps = _common_steps(sides, notes)
    if not join and not all(other_layout(step.target, step.golden) for step in steps):
        return []
    for step in steps:
        check_ranks(paths.target, step.target)
        check_ranks(paths.golden, step.golden)
    lost = _lost_steps(sides)
    if lost and steps:
        gaps.append(Message("note.no_step", steps=lost))
    return steps


def _with_paths(sides: Pair[list[Source]], paths: Pair[Path]) -> list[tuple[list[Source], Path]]:
    return [
        (side, path.parent if path.is_file() else path)
        for side, path in ((sides.target, paths.target), (sides.golden, paths.golden))
    ]


def _common_steps(sides: Pair[list[Source]], notes: list[Message]) -> list[Pair[list[Source]]]:
    ours, theirs = _by_step(sides.target), _by_step(sides.golden)
    if len(ours) == len(theirs) == 1 and set(ours) != set(theirs):
        one, other = next(iter(ours)), next(iter(theirs))
        _add(notes, Message("note.step_pair", target=str(one[1]), golden=str(other[1])))
        theirs = {one: theirs[other]}
    return [Pair(ranks, theirs[step]) for step, ranks in ours.items() if step in theirs]


def _lost_steps(sides: Pair[list[Source]]) -> list[Message]:
    ours, theirs = _by_step(sides.target), _by_step(sides.golden)
    if len(ours) == len(theirs) == 1:
        return []
    return _only_once(ours, theirs)


def _only_once(ours: Mapping[Step, object], theirs: Mapping[Step, object]) -> list[Message]:
    """The steps that one run lacks."""
    alone = [("target", step) for step in ours if step not in theirs]
    alone += [("golden", step) for step in theirs if step not in ours]
    return [Message("note.step_of", step=str(step[1]), side=SIDES[side]) for side, step in alone]


def _other_steps(pairs: Sequence[Pair[Source]]) -> Optional[Message]:
    """Why these two should not be compared; None if they can be."""
    one = pairs[0]
    ours, theirs = one.target, one.golden
    if ours.step is None or theirs.step is None or ours.step == theirs.step:
        return None
    same_run = ours.path.parent.parent.resolve() == theirs.path.parent.parent.resolve()
    return Message("note.same_run" if same_run else "note.other_steps", target=ours.step, golden=theirs.step)


def open_sources(path: Path, gaps: list[Message]) -> list[Source]:
    """What can be compared at a path: a dump of msprobe or mindstudio-probe, or a graph-mode directory."""
    try:
        dump = open_dump(path)
    except DumpError as error:
        ranks = open_graph_dump(path)
        if ranks:
            return list(ranks)
        raise explain_missing(path, error) from None
    gaps += [Message("note.unread", error=note) for note in dump.notes]
    return list(dump.ranks)


def pair_again(golden: Sequence[Source], path: Path) -> list[Pair[Source]]:
    """A second dump of the golden run, paired with the ranks of the first that are compared."""
    others = open_sources(path, [])
    wanted = list({rank.path: rank for rank in golden}.values())
    pairs = _paired(Pair(others, wanted), [], [])
    without = {rank.path for rank in wanted} - {pair.golden.path for pair in pairs}
    if without:
        raise DumpError(f"{path} cannot serve as --noise: it has nothing for {sorted(without)[0]}.")
    return pairs


def _wanted(
    path: Path, sources: list[Source], steps: Optional[Sequence[int]], ranks: Optional[Sequence[int]]
) -> list[Source]:
    found = [
        source
        for source in sources
        if (not steps or source.step in steps) and (not ranks or (source.rank or 0) in ranks)
    ]
    if not found:
        raise DumpError(f"{path} has no such step and rank; it has {_listed(sources)}. Change --step or --rank.")
    return found


def _listed(ranks: Sequence[Source]) -> str:
    labels = [rank.label for rank in ranks]
    return ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")


def _paired(sides: Pair[list[Source]], notes: list[Message], gaps: list[Message]) -> list[Pair[Source]]:
    ours, theirs = _by_step(sides.target), _by_step(sides.golden)
    if len(ours) == len(theirs) == 1 and set(ours) != set(theirs):
        (one, other) = (next(iter(ours)), next(iter(theirs)))
        _add(notes, Message("note.step_pair", target=str(one[1]), golden=str(other[1])))
        theirs = {one: theirs[other]}
    pairs: list[Pair[Source]] = []
    for step, ranks in ours.items():
        if step in theirs:
            pairs += _paired_ranks(ranks, theirs[step], notes, gaps)
    lost = _only_once(ours, theirs)
    if lost and pairs:
        gaps.append(Message("note.no_step", steps=lost))
    return pairs


Step = tuple[str, Optional[int]]


def _by_step(ranks: Iterable[Source]) -> dict[Step, list[Source]]:
    steps: dict[Step, list[Source]] = {}
    for rank in ranks:
        steps.setdefault((rank.kind or "", rank.step), []).append(rank)
    return steps


def _paired_ranks(
    target: list[Source], golden: list[Source], notes: list[Message], gaps: list[Message]
) -> list[Pair[Source]]:
    if len(target) == len(golden) == 1:
        ours, theirs = target[0].rank, golden[0].rank
        if ours is not None and theirs is not None and ours != theirs:
            _add(notes, Message("note.rank_pair", target=ours, golden=theirs))
        return [Pair(target[0], golden[0])]
    if any(r.rank is None for r in [*target, *golden]):
        if len(target) != len(golden):
            _add(gaps, Message("note.unnumbered", target=len(target), golden=len(golden)))
        return [Pair(t, g) for t, g in zip(target, golden)]
    known = {rank.rank: rank for rank in golden}
    if len(target) != len(golden):
        _add(notes, Message("note.rank_count", number=len(target), golden=len(golden)))
    numbers = {rank.rank for rank in target}
    alone = [("target", rank) for rank in target if rank.rank not in known]
    alone += [("golden", rank) for rank in golden if rank.rank not in numbers]
    if alone:
        lost = [Message("note.rank_of", rank=rank.label, side=SIDES[side]) for side, rank in alone]
        gaps.append(Message("note.no_rank", ranks=lost))
    return [Pair(rank, known[rank.rank]) for rank in target if rank.rank in known]


def _add(notes: list[Message], text: Message) -> None:
    if text not in notes:
        notes.append(text)


_HEADERS = {
    "framework": "header.framework",
    "torch": "header.torch",
    "mindspore": "header.mindspore",
    "device": "header.device",
    "world_size": "header.world_size",
    "default_dtype": "header.default_dtype",
    "autocast": "header.autocast",
    "autocast_dtype": "header.autocast_dtype",
    "float32_matmul_precision": "header.matmul_precision",
    "tf32": "header.tf32",
    "hf32": "header.hf32",
    "deterministic_algorithms": "header.determinism",
    "cudnn": "header.cudnn",
    "torch_seed": "header.seed",
    "threads": "header.threads",
    "mindspore_seed": "header.seed",
    "deterministic": "header.determinism",
    "mode": "header.mode",
}
_SERIOUS = ("note.batches", "header.seed", "header.default_dtype", "header.autocast")


def header_notes(target: dict[str, Any], golden: dict[str, Any], joined: bool = False) -> list[Message]:
    """What the two run.json say differently, the worst (other data, other seed) first; `joined`: of two runs in
    different layouts, whose ranks have their own parts of the data."""
    notes = []
    ignored = ("world_size",) if joined else ()
    ours, theirs = _hashes(target.get("first_batch")), _hashes(golden.get("first_batch"))
    if (
        not joined
        and ours
        and theirs
        and ours != theirs
        and not _is_in_other_dtype(target["first_batch"], golden["first_batch"])
    ):
        notes.append(Message("note.batches"))
    for key, id in _HEADERS.items():
        if key in target and key in golden and key not in ignored and _text(target[key]) != _text(golden[key]):
            notes.append(Message(id, target=_short(target[key]), golden=_short(golden[key])))
    return sorted(notes, key=lambda note: note.id not in _SERIOUS)


def _hashes(batch: Any) -> list[Any]:
    """The checksums of a first batch. Frameworks name types differently, but the bytes are the same."""
    items = batch if isinstance(batch, list) else []
    return [item["md5"] for item in items if isinstance(item, dict) and item.get("md5")]


def _is_in_other_dtype(target: list[Any], golden: list[Any]) -> bool:
    """If one run has converted the batch, the bytes differ and do not show whether the data are the same."""
    pairs = [(a, b) for a, b in zip(target, golden) if isinstance(a, dict) and isinstance(b, dict)]
    unlike = [(a, b) for a, b in pairs if a.get("md5") != b.get("md5")]
    types = [tuple(_text(item.get("dtype")).rpartition(".")[2] for item in pair) for pair in unlike]
    return len(target) == len(golden) and bool(types) and all(ours != theirs for ours, theirs in types)


def _text(value: Any) -> str:
    return str(value).lower()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
