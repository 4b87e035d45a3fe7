"""Why a run does not repeat itself: rules over the evidence, in order; the first that does not decline answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.config.directions import Remedies
from msprobe.dump.names import BACKWARD, forward_of, is_module, parse_name
from msprobe.messages import Message
from msprobe.rerun.bit_flip import FlippedBit, find_flipped_bit
from msprobe.rerun.draws import count_draws
from msprobe.rerun.first_difference import ARGUMENT, CALLS, INPUT, OUTPUT, Difference
from msprobe.rerun.remedy_words import Remedy, remedy_for
from msprobe.stats.dtypes import BY_MINDSPORE, BY_TORCH

SEED = 1234
_FEW = 16
_ORDER_FREE = ("Max", "Min")
_CHOOSING = frozenset(("Tensor.__getitem__", "Torch.index_select", "Tensor.index_select", "Torch.gather", "Torch.take"))


@dataclass(frozen=True)
class Cause:
    """`word` names the kind of cause. `remedies` and `environment` are what `--fix` runs the script with."""

    word: str
    sentence: Message
    remedy: Message
    remedies: Remedies = field(default_factory=Remedies)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """What is known about a difference. `repeated` is the report of running the call again in a third run; None if
    there was none. `elsewhere` is the step at which the second run was given what the first run was given here."""

    difference: Difference
    repeated: Optional[Mapping[str, Any]] = None
    elsewhere: Optional[int] = None

    @property
    def words(self) -> Remedy:
        return remedy_for(self.difference.unit.first.head.get("framework"))

    def starts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The states of the generators when the step began."""
        first, second = self.difference.unit.generators()
        return first.get("start") or {}, second.get("start") or {}

    def ends(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The states of the generators when the step ended."""
        first, second = self.difference.unit.generators()
        return first.get("end") or {}, second.get("end") or {}

    def draws(self) -> tuple[list[Any], list[Any]]:
        first, second = self.difference.unit.generators()
        return first.get("draws") or [], second.get("draws") or []

    def flipped(self) -> Optional[FlippedBit]:
        """The one bit that differs, if the two values differ in one bit."""
        first, second = self.difference.items
        if not (isinstance(first, dict) and isinstance(second, dict)) or first.get("shape") != second.get("shape"):
            return None
        dtype = BY_TORCH.get(str(first.get("dtype"))) or BY_MINDSPORE.get(str(first.get("dtype")))
        sizes = first.get("shape")
        if dtype is None or not isinstance(sizes, list) or "md5" not in first or "md5" not in second:
            return None
        size = math.prod(sizes) * dtype.itemsize
        return find_flipped_bit(int(first["md5"], 16), int(second["md5"], 16), size, dtype.itemsize)


Rule = Callable[[Evidence], Optional[Cause]]


def _uninitialised(evidence: Evidence) -> Optional[Cause]:
    if not evidence.difference.uninitialised:
        return None
    return Cause(
        "uninitialised memory",
        Message("again.uninitialised"),
        Message("remedy.zeros"),
        Remedies(deterministic=True),  # fills new memory
    )


def _random_call(evidence: Evidence) -> Optional[Cause]:
    """The call itself draws random numbers."""
    name = forward_of(evidence.difference.name)
    ours, theirs = (dict(map(tuple, draws)) for draws in evidence.draws())
    if name not in ours or name not in theirs:
        return None
    if ours[name] == theirs[name] and evidence.difference.kind == OUTPUT and ours[name][1] is not None:
        return None  # the same random numbers
    return _explain_generator(evidence, ours[name], theirs[name])


def _random_before(evidence: Evidence) -> Optional[Cause]:
    """A generator was in a different state when the step began, and something entered the step from outside."""
    if evidence.difference.kind == OUTPUT:
        return None
    ours, theirs = evidence.starts()
    if not ours or not theirs:
        return None
    used = ours.get("used") or {}
    for key in ("torch", "mindspore"):
        if ours.get(key) != theirs.get(key) and used.get(key):
            return _explain_generator(evidence, ours[key], theirs[key])
    for key, remedy in (
        ("numpy", evidence.words.numpy),
        ("python", Message("remedy.python_seed")),
    ):
        if ours.get(key) != theirs.get(key) and used.get(key):
            title = "numpy's" if key == "numpy" else "Python's"
            workers = int(ours.get("loader_workers") or 0)
            return Cause(
                "random numbers",
                Message("again.generator_starts", generator=title),
                Message("remedy.also_workers", remedy=remedy) if workers else remedy,
                Remedies(seed=SEED),
            )
    return None


def _random_inside(evidence: Evidence) -> Optional[Cause]:
    """A value entered the step from outside, and a generator of the host went a different way inside the step."""
    difference = evidence.difference
    if difference.kind != INPUT or not difference.from_outside or difference.makers != (None, None):
        return None
    ours, theirs = evidence.ends()
    for key, title in (("numpy", "numpy's"), ("python", "Python's")):
        if ours and theirs and ours.get(key) != theirs.get(key):
            return Cause(
                "random numbers",
                Message("again.generator_ends", generator=title),
                Message("remedy.changing_seed", module="numpy.random" if key == "numpy" else "random"),
                Remedies(seed=SEED),
            )
    return None


def _explain_generator(evidence: Evidence, ours: list[Any], theirs: list[Any]) -> Cause:
    kind, seeded, words = str(ours[0]), bool(evidence.starts()[0].get("seeded")), evidence.words
    is_global = kind == "mindspore"
    title = Message("again.mindspore_seed") if is_global else Message("again.torch_generator", device=kind.upper())
    if ours[1] is None and theirs[1] is None:
        said = Message("again.no_seed_yet" if seeded else "again.never_seeded")
        return Cause("random numbers", said, words.seed, Remedies(seed=SEED))
    if ours[1] != theirs[1]:
        id = "again.other_seed" if seeded else "again.unseeded"
        if is_global:
            id = "again.other_global_seed" if seeded else "again.unseeded_global"
        said = Message(id, generator=title, first=str(ours[1]), second=str(theirs[1]))
        return Cause("random numbers", said, words.seed, Remedies(seed=SEED))
    said = Message("again.drawn_global" if is_global else "again.drawn", generator=title)
    if ours[2] >= 0:
        drawn = [count_draws(*one[1:]) if one[2] >= 0 else None for one in (ours, theirs)]
        numbers = [Message("again.many") if one is None else f"{one:,}" for one in drawn]
        said = Message("again.drawn_numbers", said=said, numbers=numbers)
    return Cause("random numbers", said, words.own_generator, Remedies(seed=SEED))


def _threads(evidence: Evidence) -> Optional[Cause]:
    ours, theirs = (start.get("threads") for start in evidence.starts())
    if evidence.difference.kind != OUTPUT or ours == theirs:
        return None
    return Cause(
        "thread count",
        Message("again.threads", first=str(ours), second=str(theirs)),
        evidence.words.threads,
        Remedies(threads=1),
    )


def _unstable_operator(evidence: Evidence) -> Optional[Cause]:
    found = evidence.repeated or {}
    results, times = found.get("results"), found.get("times")
    if not isinstance(results, int) or results < 2:
        return None
    id = "again.unstable_module" if is_module(evidence.difference.name) else "again.unstable"
    said = Message(id, times=str(times), results=results)
    if found.get("results_when_deterministic") == 1:
        return Cause("operator", said, evidence.words.deterministic, Remedies(deterministic=True))
    if found.get("results_with_one_thread") == 1:
        return Cause("operator", said, Message("remedy.one_thread"), Remedies(threads=1))
    tries = "results_with_one_thread" not in found  # MindSpore cannot change either within a run
    return Cause("operator", said, evidence.words.untried, Remedies(deterministic=tries))


def _bit_flip(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    flipped = evidence.flipped()
    if flipped is None:
        return None
    sizes = difference.items[0]["shape"]
    stays = difference.kind == INPUT and (difference.makers[0] is not None or bool(difference.parameter))
    if not stays and math.prod(sizes) < _FEW:
        return None  # the last bit of a number often differs by rounding
    at = _index(flipped.element, sizes)
    what = difference.slot if not difference.parameter else difference.parameter
    said = Message("again.bit", what=what, bit=flipped.bit, element=str(at))
    if difference.rank is not None:
        said = Message("again.on_rank", said=said, rank=difference.rank)
    if evidence.repeated and evidence.repeated.get("results") == 1:
        alone = Message("again.one_result", times=str(evidence.repeated["times"]))
        said = Message("also", parts=[said, alone])
    return Cause("bit flip", said, Message("remedy.hardware"))


def _index(element: int, sizes: list[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(sizes):
        found.append(element % size)
        element //= size
    return found[::-1]


def _collective(evidence: Evidence) -> Optional[Cause]:
    if not evidence.difference.received:
        return None
    return Cause(
        "collective",
        Message("again.collective"),
        Message("remedy.rank_order"),
    )


def _one_per_process(evidence: Evidence) -> Optional[Cause]:
    found = evidence.repeated or {}
    if evidence.difference.kind != OUTPUT or found.get("results") != 1:
        return None
    return Cause(
        "choice per process",
        Message("again.per_process", times=str(found.get("times"))),
        evidence.words.choice,
        Remedies(deterministic=True),
    )


def _other_calls(evidence: Evidence) -> Optional[Cause]:
    if evidence.difference.kind != CALLS:
        return None
    if any(evidence.difference.name == name for draws in evidence.draws() for name, _ in draws):
        return Cause(
            "random numbers",
            Message("again.draws_once", said=evidence.difference.items[0]),
            evidence.words.own_generator,
        )
    return Cause(
        "control flow",
        Message("again.decided", said=evidence.difference.items[0]),
        Message("remedy.decision"),
        environment={"PYTHONHASHSEED": "0"},
    )


def _other_argument(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    if difference.kind != ARGUMENT:
        return None
    values = [one.get("value") if isinstance(one, dict) else one for one in difference.items]
    if parse_name(difference.name).key in _CHOOSING:
        said = Message("again.chooses", first=str(values[0]), second=str(values[1]))
        return _data_cause("data order", said, evidence)
    return Cause(
        "argument",
        Message("again.argument", slot=difference.slot, first=str(values[0]), second=str(values[1])),
        Message("remedy.argument"),
        environment={"PYTHONHASHSEED": "0"},
    )


def _changed_between(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    ours, theirs = difference.makers
    if difference.kind != INPUT or (
        ours is None and theirs is None and (difference.from_outside or difference.parameter)
    ):
        return None
    if ours is None and theirs is None:
        return Cause(
            "unrecorded change",
            Message("again.unseen_change", slot=difference.slot),
            Message("remedy.before"),
        )
    if ours is not None and theirs is not None:
        return Cause(
            "wiring",
            Message("again.wiring", slot=difference.slot, first=ours.name, second=theirs.name),
            Message("remedy.order"),
            environment={"PYTHONHASHSEED": "0"},
        )
    maker, id = (ours, "again.changed_second") if ours is not None else (theirs, "again.changed_first")
    assert maker is not None
    return Cause(
        "unrecorded change",
        Message(id, slot=difference.slot, call=maker.name),
        Message("remedy.between"),
    )


def _data(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    if difference.kind != INPUT:
        return None
    ours, theirs = difference.items
    same_values = all(ours.get(key) == theirs.get(key) for key in _ORDER_FREE) and _near(ours, theirs)
    if evidence.elsewhere is not None:
        said = Message("again.elsewhere", first=str(difference.step), second=evidence.elsewhere)
    elif same_values and math.prod(ours.get("shape") or [0]) > 1:
        said = Message("again.other_order", slot=difference.slot)
    elif parse_name(difference.name).key in _CHOOSING and difference.slot != "input.0":
        said = Message("again.other_elements")
    else:
        return _data_cause("data", Message("again.outside", slot=difference.slot), evidence)
    return _data_cause("data order", said, evidence)


def _data_cause(word: str, said: Message, evidence: Evidence) -> Cause:
    start = evidence.starts()[0]
    workers = int(start.get("loader_workers") or 0)
    if workers:
        return Cause(
            word,
            Message("again.workers", said=said, number=workers),
            Message("remedy.worker_seed"),
            Remedies(seed=SEED),
            {"PYTHONHASHSEED": "0"},
        )
    said = Message("again.hashed", said=said) if start.get("hash_randomization") else said
    return Cause(
        word,
        said,
        Message("remedy.sort"),
        Remedies(seed=SEED),
        {"PYTHONHASHSEED": "0"},
    )


def _near(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    pairs = [(first.get(key), second.get(key)) for key in ("Mean", "Norm")]
    return all(
        isinstance(one, (int, float))
        and isinstance(two, (int, float))
        and math.isclose(one, two, rel_tol=1e-5, abs_tol=1e-9)
        for one, two in pairs
    )


def _unknown(evidence: Evidence) -> Optional[Cause]:
    is_gradient = parse_name(evidence.difference.name).direction == BACKWARD
    return Cause(
        "not known",
        Message("again.unknown_gradient" if is_gradient else "again.unknown"),
        Message("remedy.fix"),
        Remedies(seed=SEED, deterministic=True, threads=1),
        {"PYTHONHASHSEED": "0"},
    )


RULES: tuple[Rule, ...] = (
    _uninitialised,
    _random_call,
    _threads,
    _unstable_operator,
    _bit_flip,
    _collective,
    _random_before,
    _random_inside,
    _other_calls,
    _other_argument,
    _changed_between,
    _data,
    _one_per_process,
    _unknown,
)


def explain(evidence: Evidence) -> Cause:
    found = next(filter(None, (rule(evidence) for rule in RULES)), None)
    assert found is not None
    return found


def wants_repetition(evidence: Evidence) -> bool:
    """Whether running the call again can tell more."""
    difference = evidence.difference
    known = any(rule(evidence) for rule in (_uninitialised, _random_call, _threads))
    return difference.kind == OUTPUT and not difference.is_collective and not known
