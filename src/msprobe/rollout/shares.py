"""How much of the log-prob difference each layer causes.

The trainer's model runs in float64 with the errors that the rollout made in one layer added to its values, and nothing
else. The change of the log-probs is what this layer causes; its share is the part along the change of all layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe.rollout.logprobs import log_softmax
from msprobe.rollout.matching import layer_of
from msprobe.rollout.reference import Node
from msprobe.rollout.replay import Replay
from msprobe.rollout.sides import Pairing

Array = np.ndarray[Any, Any]
_SEQUENCES = 4


def layer_shares(replay: Replay) -> dict[str, float]:
    """The share of each layer, in the order of computation. They add up to about 1; a negative one counteracts."""
    changes: dict[str, list[Array]] = {}
    totals: list[Array] = []
    names: dict[str, None] = dict.fromkeys(_name(node) for node in replay.order)
    for pair in replay.pairs[:_SEQUENCES]:
        errors = _errors(replay, pair)
        plain = _logprobs(replay, pair, {})
        totals.append(_logprobs(replay, pair, errors) - plain)
        for name in names:
            part = {node: error for node, error in errors.items() if _name(node) == name}
            change = _logprobs(replay, pair, part) - plain if part else np.zeros_like(plain)
            changes.setdefault(name, []).append(change)
    total = np.concatenate(totals)
    size = float((total**2).sum())
    if not size:
        return {}
    return {name: float((np.concatenate(one) * total).sum()) / size for name, one in changes.items()}


def _name(node: Node) -> str:
    """The layer of a value, or its module outside of layers."""
    numbers = layer_of(node.path)
    return f"layer {numbers[0]}" if numbers else node.path


def _errors(replay: Replay, pair: Pairing) -> dict[Node, Array]:
    """What the rollout recorded less what float64 gives on the rollout's own inputs; zero where it has no row."""
    errors: dict[Node, Array] = {}

    def observe(node: Node, exact: Array) -> None:
        known = replay.recorded(node, pair)
        if known is not None and known[0].shape == exact.shape:
            errors[node] = np.where(known[1][:, None], known[0] - exact, 0.0)

    replay.run_rollout(pair, observe)
    head = replay.head_rows
    if head is not None:
        exact = replay.reference.call(replay.head, head.hidden, (head.hidden.shape[1],))
        error = np.zeros((len(pair.tokens), head.logits.shape[1]))
        places = {int(row): place for place, row in enumerate(pair.rollout_rows) if row >= 0}
        for index, row in enumerate(head.rows.tolist()):
            if row in places:
                error[places[row]] = head.logits[index] - exact[index]
        errors[Node(replay.head, "out")] = error
    return errors


def _logprobs(replay: Replay, pair: Pairing, shifts: dict[Node, Array]) -> Array:
    """The log-prob of each token after the first, with these errors added."""
    result: list[Array] = []

    def observe(node: Node, exact: Array) -> None:
        if node == Node(replay.head, "out"):
            result.append(exact + shifts.get(node, 0.0))

    replay.reference.run(pair.tokens, lambda node: None, observe, replay.aliases, shifts=shifts)
    values = log_softmax(result[0][:-1])
    made: Array = values[np.arange(len(values)), pair.tokens[1:]]
    return made
