"""Log-probabilities of both sides: how far apart, in nats, and whether the rollout's fit its own logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from msprobe.rollout.sides import Pairing, Side

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TokenDifference:
    """One token: its log-probability on each side."""

    sequence: str
    position: int
    token: int
    rollout: float
    trainer: float

    @property
    def difference(self) -> float:
        return self.rollout - self.trainer


@dataclass(frozen=True)
class Differences:
    """All tokens whose log-probability both sides know."""

    tokens: list[TokenDifference]

    @property
    def values(self) -> Array:
        return np.array([one.difference for one in self.tokens])

    def figures(self) -> dict[str, float]:
        """mean, 90%, 99% and maximum of the difference, and the estimate k3 of the KL divergence, in nats."""
        size = np.abs(self.values)
        ratio = -self.values  # log(trainer / rollout)
        with np.errstate(over="ignore"):
            k3 = np.exp(ratio) - 1 - ratio
        return {
            "mean": float(size.mean()),
            "p90": float(np.quantile(size, 0.9)),
            "p99": float(np.quantile(size, 0.99)),
            "max": float(size.max()),
            "k3_mean": float(k3.mean()),
            "k3_max": float(k3.max()),
        }

    @property
    def worst(self) -> TokenDifference:
        return self.tokens[int(np.argmax(np.abs(self.values)))]


def log_softmax(logits: Array) -> Array:
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    made: Array = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return made


def compare_logprobs(rollout: Side, trainer: Side, pairs: list[Pairing], head: str) -> Optional[Differences]:
    """The log-probabilities that the rollout recorded, next to those of the trainer's logits, at the temperature that
    the rollout's are for. None if one side has none."""
    outputs = [slot for slot in trainer.slots(head) if slot.name.startswith("output")]
    logits = trainer.table(outputs[0]) if outputs else None
    if logits is None or not rollout.logprobs:
        return None
    processed = str(rollout.engine.get("logprobs_mode", "")).startswith("processed")
    rows = {pair.rollout: pair for pair in pairs}
    found = []
    for one in rollout.logprobs:
        pair = rows.get(one.sequence)
        if pair is None or not 0 < one.position < len(pair.tokens) or pair.tokens[one.position] != one.token:
            continue
        row = pair.trainer_rows[one.position - 1]
        if row < 0 or one.token >= logits.shape[1]:
            continue
        sampling = rollout.sequences[one.sequence].sampling
        temperature = float(sampling.get("temperature") or 1.0) if processed and one.kind == "sampled" else 1.0
        golden = float(log_softmax(logits[row] / temperature)[one.token])
        name = rollout.sequences[one.sequence].name
        found.append(TokenDifference(name, one.position, one.token, one.logprob, golden))
    return Differences(found) if found else None


@dataclass(frozen=True)
class HeadRows:
    """The rows for which the rollout computed logits: hidden values, logits, and which row of the model they are."""

    hidden: Array
    logits: Array
    rows: Array
    path: str
    dtype: str


def head_rows(rollout: Side, norm: Optional[Array], width: int, hidden: int) -> Optional[HeadRows]:
    """Engines compute logits only where they sample. The record is found by its shapes; its rows by their values."""
    from msprobe.dump.items import items

    found: list[tuple[Array, Array, Array]] = []
    where, dtype = "", ""
    offset = 0
    for part in rollout.parts:
        count = len(part.rows.sequence)
        for name, record in part.ranks[0].records.items():
            tensors = [(s, i) for s, i in items(record) if isinstance(i, dict) and i.get("data_name")]
            given = [i for s, i in tensors if s.startswith("input") and i.get("shape", [])[1:] == [hidden]]
            made = [i for s, i in tensors if s.startswith("output") and i.get("shape", [])[1:] == [width]]
            if not given or not made or given[-1]["shape"][0] != made[0]["shape"][0]:
                continue
            x, y = (np.asarray(part.ranks[0].tensor(i["data_name"])).astype(np.float64) for i in (given[-1], made[0]))
            rows = _rows_of(x, norm, offset, count)
            if norm is not None and (rows < 0).all():
                continue  # a different module with these shapes
            where, dtype = name.rpartition(".forward.")[0], str(made[0].get("dtype")).rpartition(".")[2]
            found.append((x, y, rows))
        offset += count
    if not found:
        return None
    hidden_rows, logits, rows = (np.concatenate([one[index] for one in found]) for index in range(3))
    return HeadRows(hidden_rows, logits, rows, where, dtype)


def _rows_of(values: Array, norm: Optional[Array], offset: int, count: int) -> Array:
    """The row of the model with exactly these values; -1 if there is none."""
    if norm is None or norm.shape[1] != values.shape[1]:
        return np.full(len(values), -1)
    known = {norm[row].tobytes(): row for row in range(offset, offset + count)}
    return np.array([known.get(one.tobytes(), -1) for one in values])


def explain_logprobs(rollout: Side, head: Optional[HeadRows]) -> Optional[tuple[str, str]]:
    """Whether the recorded log-probabilities are those of the rollout's own logits; the cause if they are not."""
    if head is None:
        return None
    places = {
        (int(rollout.rows.sequence[row]), int(rollout.rows.position[row])): index
        for index, row in enumerate(head.rows)
        if row >= 0
    }
    known = [(one, places.get((one.sequence, one.position - 1))) for one in rollout.logprobs if one.kind == "sampled"]
    pairs = [(one, head.logits[index]) for one, index in known if index is not None]
    if len(pairs) < 2:
        return None
    recorded = np.array([one.logprob for one, _ in pairs])
    settings = [rollout.sequences[one.sequence].sampling for one, _ in pairs]
    temperature = np.array([float(one.get("temperature") or 1.0) for one in settings])
    top_p = np.array([float(one.get("top_p") or 1.0) for one in settings])
    tokens = [one.token for one, _ in pairs]
    logits = np.stack([values for _, values in pairs])
    processed = str(rollout.engine.get("logprobs_mode", "")).startswith("processed")
    expected = _chosen(logits, temperature if processed else np.ones(len(pairs)), tokens)
    if _near(recorded, expected):
        return None
    narrow = head.dtype in ("bfloat16", "float16")  # a sampler may divide logits before it widens them
    loose = 2.0**-7 * float(np.abs(logits).max()) if narrow else 2e-3
    one = np.ones(len(pairs))
    tests: list[tuple[str, str, Array, Optional[Array]]] = [
        ("temperature", "are divided by the temperature, although the engine says raw", temperature, None),
        ("temperature", "are not divided by the temperature, although the engine says processed", one, None),
        ("temperature", "are divided by the temperature twice", temperature**2, None),
        ("top_p", "are normalised over the tokens that top-p leaves", temperature, top_p),
        ("top_p", "are normalised over the tokens that top-p leaves, without the temperature", one, top_p),
    ]
    for cause, text, divisor, kept in tests:
        if _near(recorded, _chosen(logits, divisor, tokens, kept), loose):
            return cause, f"the log-probs of the rollout {text}"
    if _near(recorded[1:], expected[:-1]) or _near(recorded[:-1], expected[1:]):
        return "shift", "the log-probs of the rollout are shifted by one token"
    return "sampler", "the log-probs of the rollout are not those of its own logits"


def _near(first: Array, second: Array, limit: float = 2e-3) -> bool:
    return bool(np.abs(first - second).max() < limit) if len(first) else False


def _chosen(logits: Array, temperature: Array, tokens: list[int], top_p: Optional[Array] = None) -> Array:
    values = log_softmax(logits / temperature[:, None])
    if top_p is not None:
        values = np.stack([truncate(one, float(p)) for one, p in zip(values, top_p)])
    return values[np.arange(len(tokens)), tokens]


def truncate(logprobs: Array, top_p: float) -> Array:
    """Log-probabilities after top-p: the most likely tokens whose sum reaches it, normalised; -inf for the others."""
    order = np.argsort(-logprobs)
    total = np.cumsum(np.exp(logprobs[order]))
    kept = order[: int(np.searchsorted(total, top_p)) + 1]
    made: Array = np.full(len(logprobs), -np.inf)
    made[kept] = logprobs[kept] - np.log(np.exp(logprobs[kept]).sum())
    return made
