"""What the training loops of the ranks do differently from the golden run's: settings, and parameters left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msprobe.compare.layout.dimensions import rank_of, ranks_text
from msprobe.compare.layout.flat import read_flat
from msprobe.compare.layout.unit import JoinTask
from msprobe.compare.layout.updates import parameter_paths
from msprobe.compare.origin.optimizer_steps import names_of
from msprobe.compare.origin.training import TrainingDifference, training_differences
from msprobe.compare.phases import Phase
from msprobe.compare.sources import Source
from msprobe.dump.reader import RankDump
from msprobe.messages import Message

Event = Mapping[str, Any]

_OF_RANK = ("parameters", "elements", "gradients", "names", "with_gradient")
"""The keys of an event of the training loop that depend on the share of the rank."""


def joined_training(task: JoinTask) -> tuple[list[TrainingDifference], tuple[int, ...]]:
    """What the training loop of some ranks does differently, and which ranks."""
    golden = _events(task.golden[0])
    lost = _left_out(task)
    found: dict[int, list[TrainingDifference]] = {}
    for place, source in enumerate(task.target):
        rank = rank_of(place, source)
        found[rank] = [*training_differences(*_comparable(_events(source), golden)), *lost.get(rank, ())]
    ranks = tuple(rank for rank, said in found.items() if any(not one.note_only for one in said))
    if not ranks:
        return found[min(found)], ()
    said = found[ranks[0]]
    if len(ranks) < len(found):
        only = ranks_text(ranks)
        said = [one._replace(sentence=Message("training.on_ranks", said=one.sentence, ranks=only)) for one in said]
    return said, ranks


def _comparable(target: Sequence[Event], golden: Sequence[Event]) -> tuple[list[Any], list[Any]]:
    """The events without what differs from rank to rank: how many parameters it has."""
    ours, theirs = _shared(target), _shared(golden)
    if _clips(ours) != _clips(theirs):  # a run in parallel may clip by hand
        ours, theirs = ([one for one in side if "clip" not in str(one.get("event"))] for side in (ours, theirs))
    return ours, theirs


def _clips(events: Sequence[Event]) -> int:
    return sum(event.get("event") == "clip_grad_norm" for event in events)


def _shared(events: Sequence[Event]) -> list[Any]:
    found = []
    for event in events:
        if event.get("event") in ("buffers", "backward", "backward_end"):
            continue
        kept = {key: value for key, value in event.items() if key not in _OF_RANK}
        groups = kept.get("groups")
        if isinstance(groups, list):
            kept["groups"] = [
                {key: value for key, value in group.items() if key not in _OF_RANK} if isinstance(group, dict) else {}
                for group in groups
            ]
        found.append(kept)
    return found


# Parameters that no optimizer updates


def _left_out(task: JoinTask) -> dict[int, list[TrainingDifference]]:
    """By rank, the parameters that the golden run updates and no rank does, or that another rank with the same part of
    the model updates and this one does not. Empty if names do not help: fused or renamed weights."""
    flat = _in_flat(task.target), _in_flat(task.golden)
    ours = {rank_of(place, source): set(_updated(source, flat[0])) for place, source in enumerate(task.target)}
    golden = {name for source in task.golden for name in _updated(source, flat[1])}
    every = {name for names in ours.values() for name in names}
    found = {}
    for rank, names in ours.items():
        lost = golden - every if every < golden else set()
        for other in ours.values():
            if names < other and 2 * len(names) > len(other):
                lost = lost | (other - names)
        if lost and names:
            first = min(lost)
            text = Message("training.left_out", name=first)
            if len(lost) > 1:
                text = Message("training.more_left_out", name=first, more=len(lost) - 1)
            found[rank] = [TrainingDifference(text, Phase.AFTER, "optimizer")]
    return found


def _updated(source: Source, flat: Mapping[str, set[str]]) -> list[str]:
    """The parameters that the optimizers of a rank update, by their paths in the complete model."""
    steps = [event for event in _events(source) if event.get("event") == "optimizer_step"]
    names = parameter_paths(source, [name for step in steps for name in names_of(step)])
    return [one for name in names for one in flat.get(name, (name,))]


def _in_flat(sources: Sequence[Source]) -> dict[str, set[str]]:
    """The parameters in each flat parameter of FSDP1, on whatever rank."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for unit, pieces in read_flat(source).units.items():
            found.setdefault(unit, set()).update(piece.name for piece in pieces)
    return found


def _events(source: Source) -> Sequence[Event]:
    events = source.training if isinstance(source, RankDump) else []
    return [event for event in events if isinstance(event, dict)]
