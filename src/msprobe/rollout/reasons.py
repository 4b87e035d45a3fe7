"""Why a value is not the trainer's: hypotheses that are computed, and accepted only if they explain the difference.

Each test takes a `Case` and returns a reason, or None. The first that explains it wins, so the list goes from exact
explanations (the weights of a different module) to general ones (the weight differs).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import ml_dtypes
import numpy as np

from msprobe.rollout.attention_reasons import explain_attention
from msprobe.rollout.judge import Finding
from msprobe.rollout.matching import Source, layer_of
from msprobe.rollout.reference import ATTENDED, KEY, QUERY, VALUE, Node, Variation
from msprobe.rollout.replay import Errors, Replay
from msprobe.rollout.rotation_reasons import explain_rotation

Array = np.ndarray[Any, Any]
_ENOUGH = 2.0
_SAMPLE = 256
_EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 0.0)


@dataclass
class Reason:
    """`cause` is a word for programs; `text` is the sentence."""

    cause: str
    text: str


@dataclass
class Case:
    """One module whose output is wrong: its recorded input and output, some rows of each."""

    replay: Replay
    finding: Finding
    expected: float
    given: Array
    result: Array
    shape: tuple[int, ...]
    older: Mapping[str, Array] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.finding.node.path

    @property
    def module(self) -> Any:
        return self.replay.reference.modules[self.path]

    def error(self, result: Array, columns: Optional[Array] = None) -> float:
        mine, other = (self.result, result) if columns is None else (self.result[:, columns], result[:, columns])
        if mine.shape != other.shape:
            return float("inf")
        return float(np.linalg.norm(mine - other) / max(float(np.linalg.norm(other)), 1e-300))

    def explains(self, result: Array) -> bool:
        """Whether a hypothesis leaves only rounding."""
        return self.error(result) < _ENOUGH * self.expected

    def compute(self, module: Any = None) -> Array:
        return self.replay.reference.call(self.path, self.given, self.shape, module)


def explain(
    replay: Replay,
    finding: Finding,
    findings: Sequence[Finding],
    golden: Mapping[Node, Errors],
    older: Optional[Mapping[str, Array]] = None,
) -> None:
    """Fills in the cause of a finding."""
    node = finding.node
    expected = replay.expected(node, golden)
    reason: Optional[Reason] = None
    if node.slot in (QUERY, KEY):
        reason = _made(explain_rotation(replay, finding, expected)) or _missing_module(replay, finding)
    elif node.slot == ATTENDED:
        reason = _made(explain_attention(replay, finding, expected))
    elif node.slot == "in":
        reason = _swapped(replay, finding, expected) or Reason(
            "glue", "what is computed before this module from recorded values is different"
        )
    elif node.slot == VALUE:
        reason = Reason("value", "v changes between its projection and attention")
    else:
        case = _case(replay, finding, expected, older or {})
        tests = _MODULE_TESTS if case is not None else ()
        reason = next((made for test in tests if case is not None and (made := test(case)) is not None), None)
        if reason is None and case is None:
            reason = _routing(replay, finding, expected)
    reason = reason or Reason("unknown", "no cause that msprobe can test explains it")
    finding.cause, finding.reason = reason.cause, reason.text


def _made(found: Optional[tuple[str, str]]) -> Optional[Reason]:
    return None if found is None else Reason(*found)


def _case(replay: Replay, finding: Finding, expected: float, older: Mapping[str, Array]) -> Optional[Case]:
    path = finding.node.path
    if path == replay.head and replay.head_rows is not None:
        head = replay.head_rows
        return Case(replay, finding, expected, head.hidden, head.logits, (head.hidden.shape[1],), older)
    given, result = replay.sources.get(Node(path, "in")), replay.sources.get(finding.node)
    if given is None or result is None:
        return None
    x, y = given.values(replay.rollout), result.values(replay.rollout)
    if x is None or y is None:
        return None
    real = np.flatnonzero(replay.rollout.rows.sequence >= 0)
    rows = real[np.linspace(0, len(real) - 1, min(_SAMPLE, len(real))).astype(int)]
    source = replay.golden.get(Node(path, "in"))
    shape = replay.trainer.shape(source.slots[0]) if source is not None else (x.shape[1],)
    values = x[rows] if shape else x[rows].astype(np.int64)
    return Case(replay, finding, expected, values, y[rows], shape, older)


# Modules with weights.


def _not_applied(case: Case) -> Optional[Reason]:
    if case.result.shape == case.given.shape and case.explains(case.given):
        return Reason("not_applied", "the rollout does not apply this module: its output is its input")
    return None


def _other_weights(case: Case) -> Optional[Reason]:
    """The weights of a different module: swapped or misplaced."""
    shapes = _shapes(case.module)
    for path in case.replay.reference.leaves:
        other = case.replay.reference.modules[path]
        if path == case.path or _shapes(other) != shapes:
            continue
        weights = {name: value.detach().numpy() for name, value in other._parameters.items() if value is not None}
        if case.explains(case.compute(_with_weights(case.module, weights))):
            return Reason("misplaced", f"it holds the weights of {path}: swapped or misplaced")
    return None


def _older_weights(case: Case) -> Optional[Reason]:
    found = {name: case.older.get(f"{case.path}.{name}") for name in case.module._parameters}
    if not any(value is not None for value in found.values()):
        return None
    if case.explains(case.compute(_with_weights(case.module, found))):
        return Reason("stale", "its weights equal the older checkpoint: they were not synchronised")
    return None


def _epsilon(case: Case) -> Optional[Reason]:
    name = next((one for one in ("variance_epsilon", "eps", "epsilon") if hasattr(case.module, one)), None)
    if name is None:
        return None
    present = getattr(case.module, name)
    best = min(_EPSILONS, key=lambda eps: case.error(case.compute(_with(case.module, **{name: eps}))))
    if best != present and case.explains(case.compute(_with(case.module, **{name: best}))):
        return Reason("epsilon", f"epsilon is {best:g} in the rollout and {present:g} in the trainer")
    return None


def _plain_weight(case: Case) -> Optional[Reason]:
    """A norm without its weight, or with 1 added to it; a module without its bias."""
    import torch

    weight, bias = case.module._parameters.get("weight"), case.module._parameters.get("bias")
    if bias is not None and case.explains(case.compute(_with_weights(case.module, {"bias": np.zeros(bias.shape)}))):
        return Reason("bias", "the rollout does not add the bias")
    if weight is None or weight.dim() != 1:
        return None
    for made, text in ((torch.ones_like(weight), "without its weight"), (weight + 1, "with 1 added to its weight")):
        if case.explains(case.compute(_with_weights(case.module, {"weight": made.detach().numpy()}))):
            return Reason("norm_weight", f"the rollout computes the norm {text}")
    return None


def _lower_dtype(case: Case) -> Optional[Reason]:
    """Computed in bfloat16 or float16 although the values have a wider dtype."""
    import torch

    plain = case.error(case.compute())
    narrow = case.result.astype(ml_dtypes.bfloat16).astype(np.float64)
    if case.replay.unit(case.finding.node) < 2.0**-12 and plain < 0.02 and np.array_equal(narrow, case.result):
        return Reason("dtype", "it is computed in bfloat16: its outputs have no more digits")
    for dtype in (torch.bfloat16, torch.float16):
        made = copy.deepcopy(case.module).to(dtype)
        with torch.no_grad():
            given = torch.from_numpy(case.given).to(dtype).reshape(1, len(case.given), *case.shape)
            output = made(given)
        values = (output[0] if isinstance(output, tuple) else output).double().reshape(len(case.given), -1).numpy()
        if case.replay.unit(case.finding.node) < 2.0**-12 and case.error(values) < plain / 3:
            return Reason("dtype", f"it is computed in {str(dtype).rpartition('.')[2]}")
    return None


def _scaled(case: Case) -> Optional[Reason]:
    exact = case.compute()
    factor = float((exact * case.result).sum() / max(float((exact**2).sum()), 1e-300))
    if abs(factor - 1) > 1e-3 and case.explains(exact * factor):
        return Reason("scale", f"its output is {factor:.6g} times the trainer's")
    for cap in (5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0):
        if case.explains(np.tanh(exact / cap) * cap):
            return Reason("softcap", f"its output is capped at {cap:g} (softcap)")
    return None


def _different_weight(case: Case) -> Optional[Reason]:
    """The general case: something in the weight is not the trainer's."""
    if not any(parameter is not None for parameter in case.module._parameters.values()):
        return None
    rank = _rank_of(case)
    exact = case.compute()
    columns = np.sqrt(((case.result - exact) ** 2).sum(0) / np.maximum((exact**2).sum(0), 1e-300))
    wrong = np.flatnonzero(columns > 4 * case.expected)
    share = len(wrong) / max(len(columns), 1)
    if rank is not None:
        return Reason("stale_shard", f"the weight of rank {rank} is not the trainer's; the other ranks have it")
    if 0 < share < 0.9:
        return Reason("weight", f"{len(wrong)} of its {len(columns)} output rows of the weight are not the trainer's")
    return Reason("weight", "its weight is not the trainer's: stale, not synchronised, or wrongly loaded")


def _rank_of(case: Case) -> Optional[int]:
    """The one tensor-parallel rank whose columns are wrong."""
    source = case.replay.sources.get(case.finding.node)
    if source is None:
        return None
    slot = source.slots[0]
    ranks = len(case.replay.rollout.parts[0].ranks)
    table = case.replay.rollout.table(slot)
    if ranks == 1 or table is None or not case.replay.rollout.is_sharded(slot):
        return None
    columns = np.arange(table.shape[1]) if source.columns is None else np.array(source.columns)
    exact = case.compute()
    owner = columns // (table.shape[1] // ranks)
    errors = [case.error(exact, np.flatnonzero(owner == rank)) for rank in range(ranks)]
    wrong = [rank for rank, error in enumerate(errors) if error > 2.5 * case.expected]
    return wrong[0] if len(wrong) == 1 else None


_MODULE_TESTS: tuple[Callable[[Case], Optional[Reason]], ...] = (
    _not_applied,
    _other_weights,
    _older_weights,
    _epsilon,
    _plain_weight,
    _lower_dtype,
    _scaled,
    _different_weight,
)


# Values between modules.


def _swapped(replay: Replay, finding: Finding, expected: float) -> Optional[Reason]:
    """Two outputs of the same shape in this layer, exchanged: gate and up."""
    layer = [n for n in replay.sources if n.slot == "out" and layer_of(n.path) == layer_of(finding.node.path)]
    for place, first in enumerate(layer):
        for second in layer[place + 1 :]:
            before: dict[Node, Source] = {first: replay.sources[first], second: replay.sources[second]}
            if first.path.rpartition(".")[0] != second.path.rpartition(".")[0]:
                continue
            if _width(before[first]) != _width(before[second]):
                continue
            replay.sources.update({first: before[second], second: before[first]})
            errors = replay.measure_rollout([finding.node], most=2)
            replay.sources.update(before)
            if finding.node in errors and errors[finding.node].relative() < _ENOUGH * expected:
                names = f"{first.path} and {second.path.rpartition('.')[2]}"
                return Reason("swapped", f"{names} are exchanged in the rollout")
    return None


def _width(source: Source) -> Any:
    return None if source.columns is None else len(source.columns)


def _missing_module(replay: Replay, finding: Finding) -> Optional[Reason]:
    """A module of the trainer that feeds this value and that the rollout does not call."""
    inside = finding.node.path
    gone = [path for path in replay.matcher.unmatched if path.startswith(f"{inside}.")]
    if not gone:
        return None
    return Reason("not_applied", f"the rollout does not call {', '.join(gone)}")


def _routing(replay: Replay, finding: Finding, expected: float) -> Optional[Reason]:
    """The experts: how many are chosen, and whether their weights are normalised."""
    parent = finding.node.path.rpartition(".")[0]
    for path in replay.reference.leaves:
        module = replay.reference.modules[path]
        if not path.startswith(f"{parent}.") or not hasattr(module, "top_k"):
            continue
        for text, settings in _routing_settings(module):

            def vary(one: Any, args: Any, kwargs: Any, settings: dict[str, Any] = settings) -> Any:
                return _with(one, **settings).forward(*args, **kwargs)

            errors = replay.measure_rollout([finding.node], Variation(path, module=vary), most=2)
            if finding.node in errors and errors[finding.node].relative() < _ENOUGH * expected:
                return Reason("routing", text)
    return Reason("experts", "the weights of the experts, or how their results are combined, differ")


def _routing_settings(module: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if hasattr(module, "norm_topk_prob"):
        present = bool(module.norm_topk_prob)
        words = ("does not normalise", "normalises") if present else ("normalises", "does not normalise")
        yield (
            f"the rollout {words[0]} the weights of the chosen experts, the trainer {words[1]} them",
            {"norm_topk_prob": not present},
        )
    for count in range(1, int(getattr(module, "num_experts", module.top_k + 2)) + 1):
        if count != module.top_k:
            yield f"the rollout chooses {count} experts, the trainer {module.top_k}", {"top_k": count}


def _shapes(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(value.shape)) for name, value in module._parameters.items() if value is not None]


def _with(module: Any, **settings: Any) -> Any:
    made = copy.copy(module)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def _with_weights(module: Any, weights: Mapping[str, Optional[Array]]) -> Any:
    import torch

    made = copy.deepcopy(module)
    for name, value in weights.items():
        parameter = made._parameters.get(name)
        if value is not None and parameter is not None and tuple(value.shape) == tuple(parameter.shape):
            parameter.data = torch.from_numpy(np.array(value, dtype=np.float64))
    return made
