"""Why a run does not repeat itself: rules over the evidence, in order; the first that does not decline answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.config.directions import Remedies
from msprobe.dump.names import BACKWARD, forward_of, is_module, parse_name
from msprobe.dump.plural import count
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
    sentence: str
    remedy: str
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
        "it reads memory of torch.empty that nothing has written",
        "make the tensor with torch.zeros, or fill it before it is read",
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
        ("python", "call random.seed(0) at the start of the script"),
    ):
        if ours.get(key) != theirs.get(key) and used.get(key):
            title = "numpy's" if key == "numpy" else "Python's"
            workers = int(ours.get("loader_workers") or 0)
            also = ", and in a worker_init_fn of the DataLoader" if workers else ""
            return Cause(
                "random numbers",
                f"the state of {title} global generator differs when the step begins",
                f"{remedy}{also}",
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
                f"the state of {title} global generator is the same when the step begins and differs when it ends: "
                "inside the step, the script seeds it or draws from it differently",
                f"look for a call of {'numpy.random' if key == 'numpy' else 'random'}.seed with a number that changes",
                Remedies(seed=SEED),
            )
    return None


def _explain_generator(evidence: Evidence, ours: list[Any], theirs: list[Any]) -> Cause:
    kind, seeded, words = str(ours[0]), bool(evidence.starts()[0].get("seeded")), evidence.words
    title = "MindSpore's global seed" if kind == "mindspore" else f"torch's {kind.upper()} generator"
    if ours[1] is None and theirs[1] is None:
        said = (
            "the call has no seed: the script calls mindspore.set_seed too late for it"
            if seeded
            else "the script does not call mindspore.set_seed, so each process has different random numbers"
        )
        return Cause("random numbers", said, words.seed, Remedies(seed=SEED))
    if ours[1] != theirs[1]:
        why = "the script seeds it with a different number" if seeded else "the script does not seed it"
        verb = "is" if kind == "mindspore" else "has seed"
        said = f"{title} {verb} {ours[1]} in the first run and {theirs[1]} in the second: {why}"
        return Cause("random numbers", said, words.seed, Remedies(seed=SEED))
    drawn = [count_draws(*one[1:]) if one[2] >= 0 else None for one in (ours, theirs)]
    numbers = " and ".join("more than 62 million" if one is None else f"{one:,}" for one in drawn)
    counted = f": {numbers} numbers" if ours[2] >= 0 else ""
    same = "is the same" if kind == "mindspore" else "has the same seed"
    return Cause(
        "random numbers",
        f"{title} {same}, but numbers were drawn a different number of times before{counted}",
        words.own_generator,
        Remedies(seed=SEED),
    )


def _threads(evidence: Evidence) -> Optional[Cause]:
    ours, theirs = (start.get("threads") for start in evidence.starts())
    if evidence.difference.kind != OUTPUT or ours == theirs:
        return None
    return Cause(
        "thread count",
        f"the first run has {ours} threads, the second {theirs}: sums are split differently",
        evidence.words.threads,
        Remedies(threads=1),
    )


def _unstable_operator(evidence: Evidence) -> Optional[Cause]:
    found = evidence.repeated or {}
    results, times = found.get("results"), found.get("times")
    if not isinstance(results, int) or results < 2:
        return None
    what = "the module" if is_module(evidence.difference.name) else "the operator"
    said = f"{what} is not deterministic: repeated alone {times} times with the same inputs, it gives {results} results"
    if found.get("results_when_deterministic") == 1:
        return Cause("operator", said, evidence.words.deterministic, Remedies(deterministic=True))
    if found.get("results_with_one_thread") == 1:
        return Cause("operator", said, "run it with one thread: then it gives one result", Remedies(threads=1))
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
    rank = "" if difference.rank is None else f" on rank {difference.rank}"
    alone = ""
    if evidence.repeated and evidence.repeated.get("results") == 1:
        alone = f"; repeated alone {evidence.repeated['times']} times, the call gives one result"
    return Cause(
        "bit flip",
        f"{what} differs in one bit: bit {flipped.bit} of element {at}{rank}{alone}",
        "suspect the hardware: test the memory and the device of this rank, and keep it out of the job",
    )


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
        "every rank sent the same values in both runs, and this rank received different ones",
        "make the order of ranks fixed: name the source of each receive, and reduce in a fixed order",
    )


def _one_per_process(evidence: Evidence) -> Optional[Cause]:
    found = evidence.repeated or {}
    if evidence.difference.kind != OUTPUT or found.get("results") != 1:
        return None
    return Cause(
        "choice per process",
        f"its inputs are equal, and within one process it always gives one result ({found.get('times')} repetitions), "
        "but not the same in every process: it depends on a choice made at run time (an autotuner, the time, an "
        "address) or on state that msprobe does not see",
        evidence.words.choice,
        Remedies(deterministic=True),
    )


def _other_calls(evidence: Evidence) -> Optional[Cause]:
    if evidence.difference.kind != CALLS:
        return None
    if any(evidence.difference.name == name for draws in evidence.draws() for name, _ in draws):
        return Cause(
            "random numbers",
            f"{evidence.difference.items[0]}, which draws random numbers: all later numbers differ",
            evidence.words.own_generator,
        )
    return Cause(
        "control flow",
        f"{evidence.difference.items[0]}, and everything before it is equal: the script decided differently",
        "look for a decision that depends on the time, on a file or on the order of a set",
        environment={"PYTHONHASHSEED": "0"},
    )


def _other_argument(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    if difference.kind != ARGUMENT:
        return None
    values = [one.get("value") if isinstance(one, dict) else one for one in difference.items]
    if parse_name(difference.name).key in _CHOOSING:
        said = f"it chooses element {values[0]} in the first run and {values[1]} in the second"
        return _data_cause("data order", said, evidence)
    return Cause(
        "argument",
        f"{difference.slot} is {values[0]} in the first run and {values[1]} in the second",
        "look for the place that computes it",
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
            f"{difference.slot} was made or changed inside the model by code that msprobe does not see (numpy, a C "
            "extension)",
            "look at the code before this call",
        )
    if ours is not None and theirs is not None:
        return Cause(
            "wiring",
            f"{difference.slot} comes from {ours.name} in the first run and from {theirs.name} in the second",
            "look for an order that changes: a set, a dictionary filled by threads",
            environment={"PYTHONHASHSEED": "0"},
        )
    maker, run = (ours, "second") if ours is not None else (theirs, "first")
    assert maker is not None
    return Cause(
        "unrecorded change",
        f"{difference.slot} is what {maker.name} returned, but code that msprobe does not see (numpy, a C "
        f"extension) changed it afterwards in the {run} run",
        "look at the code between these two calls",
    )


def _data(evidence: Evidence) -> Optional[Cause]:
    difference = evidence.difference
    if difference.kind != INPUT:
        return None
    ours, theirs = difference.items
    same_values = all(ours.get(key) == theirs.get(key) for key in _ORDER_FREE) and _near(ours, theirs)
    if evidence.elsewhere is not None:
        said = f"the first run reads at step {difference.step} what the second reads at step {evidence.elsewhere}"
    elif same_values and math.prod(ours.get("shape") or [0]) > 1:
        said = f"{difference.slot} has the same values in a different order"
    elif parse_name(difference.name).key in _CHOOSING and difference.slot != "input.0":
        said = "it chooses different elements"
    else:
        return _data_cause("data", f"{difference.slot} comes from outside of the recorded calls, and differs", evidence)
    return _data_cause("data order", said, evidence)


def _data_cause(word: str, said: str, evidence: Evidence) -> Cause:
    start = evidence.starts()[0]
    workers = int(start.get("loader_workers") or 0)
    if workers:
        return Cause(
            word,
            f"{said}. All generators of the script agree; the DataLoader has {count(workers, 'worker')}, with "
            "generators of their own",
            "seed numpy and random in a worker_init_fn from torch.initial_seed()",
            Remedies(seed=SEED),
            {"PYTHONHASHSEED": "0"},
        )
    hashed = ". Python's hashes differ in each process: a set of strings has a different order each time"
    return Cause(
        word,
        said + (hashed if start.get("hash_randomization") else ""),
        "sort what comes from a set or a directory, or set PYTHONHASHSEED; seed every generator of the data",
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
    what = "gradient" if parse_name(evidence.difference.name).direction == BACKWARD else "result"
    return Cause(
        "not known",
        f"its inputs are equal and its {what} is not; the call could not be repeated alone",
        "try --fix, which runs the script with fixed seeds and deterministic algorithms",
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
