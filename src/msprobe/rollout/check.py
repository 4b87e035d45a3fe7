"""`msprobe rollout check`: do the log-probabilities of a rollout fit the model? Without an engine.

They are computed again with transformers. Shifted, scaled or truncated ones are recognised because the hypothesis,
computed, fits much better than the plain log-probs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.messages import Message, beside
from msprobe.rollout.logprobs import Differences, TokenDifference, log_softmax, truncate
from msprobe.rollout.samples import Sample

Array = np.ndarray[Any, Any]
FITS, FAILS = "fits", "differs"
NORMAL = 0.02
"""The largest mean difference, in nats, that the rounding of bfloat16 explains; verl calls 0.005 normal."""
_BETTER = 5.0


@dataclass
class CheckedSamples:
    """The answer."""

    verdict: str
    cause: str
    sentence: str
    differences: Differences
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == FITS else 1

    def summary(self) -> dict[str, Any]:
        figures = {**self.differences.figures(), "tokens": len(self.differences.tokens)}
        said = {"sentence": self.sentence, "notes": self.notes}
        return {
            "verdict": self.verdict,
            "cause": self.cause,
            "sentence": self.sentence,
            "logprobs": figures,
            "notes": self.notes,
            **beside(said, "sentence", "notes"),
        }


Logits = Callable[[list[int]], Array]
"""The logits of a sequence, [tokens, vocabulary]."""


def check_samples(samples: Sequence[Sample], logits: Logits, vocabulary: int) -> CheckedSamples:
    """Compares the log-probs of the samples with the model's, and names the cause if they do not fit."""
    known = [one for one in samples if one.logprobs and one.response]
    if not known:
        raise DumpError("no sample has log-probs: save them as 'rollout_log_probs' or 'logprobs'.")
    largest = max(max(one.tokens) for one in known)
    if largest >= vocabulary:
        raise DumpError(f"token id {largest} is not in the model's vocabulary of {vocabulary}: a different tokenizer.")
    notes: list[str] = []
    if len(known) < len(samples):
        notes.append(Message("rollout.left_out", number=len(samples) - len(known)))
    rows = [_Rows(number, one, logits(one.tokens)) for number, one in enumerate(known)]
    plain = _difference(rows, lambda row: row.plain())
    found = Differences(
        [
            TokenDifference(str(row.number), len(row.sample.prompt) + place, token, mine, golden)
            for row in rows
            for place, (token, mine, golden) in enumerate(zip(row.sample.response, row.recorded, row.plain()))
        ]
    )
    cause, sentence = _conclude(rows, plain)
    return CheckedSamples(FITS if cause == "rounding" else FAILS, cause, sentence, found, notes)


class _Rows:
    """One sample: its recorded log-probs and the logits that predict each response token."""

    def __init__(self, number: int, sample: Sample, logits: Array) -> None:
        self.number = number
        self.sample = sample
        first = len(sample.prompt) - 1
        if first < 0:
            raise DumpError(f"sample {number + 1} has no prompt: its first token has no log-prob.")
        self.logits = logits[first : first + len(sample.response)].astype(np.float64)
        self.recorded = np.array(sample.logprobs)

    def at(self, temperature: float, top_p: Optional[float] = None) -> Array:
        values = log_softmax(self.logits / temperature)
        if top_p is not None:
            values = np.stack([truncate(one, top_p) for one in values])
        made: Array = values[np.arange(len(self.sample.response)), self.sample.response]
        return made

    def plain(self) -> Array:
        return self.at(1.0)


def _difference(rows: Sequence[_Rows], function: Callable[[_Rows], Array], shift: int = 0) -> float:
    """The mean difference in nats with a hypothesis, without the 1% farthest tokens."""
    parts = []
    for row in rows:
        golden, mine = function(row), row.recorded
        if shift > 0:
            golden, mine = golden[:-shift], mine[shift:]
        elif shift < 0:
            golden, mine = golden[-shift:], mine[:shift]
        parts.append(np.abs(golden - mine))
    values = np.sort(np.concatenate(parts))
    values = np.where(np.isfinite(values), values, 1e3)[: max(1, int(len(values) * 0.99))]
    return float(values.mean()) if len(values) else float("inf")


def _conclude(rows: Sequence[_Rows], plain: float) -> tuple[str, Message]:
    tests: list[tuple[float, str, Message]] = []
    for shift, text in ((1, Message("rollout.shifted_late")), (-1, Message("rollout.shifted_early"))):
        if any(len(row.recorded) > 2 for row in rows):
            tests.append((_difference(rows, lambda row: row.plain(), shift), "shift", text))
    temperature = _search(rows)
    text = Message("rollout.temperature", temperature=f"{temperature:.3g}")
    tests.append((_difference(rows, lambda row: row.at(temperature)), "temperature", text))
    for heat in dict.fromkeys((1.0, *(row.sample.temperature or 1.0 for row in rows))):
        for top_p in dict.fromkeys(row.sample.top_p for row in rows):
            if top_p is not None and top_p < 1:
                text = Message("rollout.top_p", top_p=f"{top_p:g}")
                if heat != 1:
                    text = Message("rollout.top_p_temperature", top_p=f"{top_p:g}", temperature=f"{heat:g}")
                tests.append((_difference(rows, lambda row, t=heat, p=top_p: row.at(t, p)), "top_p", text))  # type: ignore[misc]
    best = min(tests)
    noticeable = abs(temperature - 1) > 0.02 or best[1] != "temperature"
    if noticeable and best[0] * _BETTER < plain and best[0] < NORMAL * 2.5:
        return best[1], best[2]
    if plain <= NORMAL:
        return "rounding", Message("rollout.fits", mean=f"{plain:.3g}")
    return _where(rows, plain)


def _search(rows: Sequence[_Rows]) -> float:
    """The temperature at which the model's log-probs are nearest to the recorded ones."""
    some = list(rows)[:8]
    low, high = 0.1, 10.0
    for _ in range(5):
        grid = np.geomspace(low, high, 13)
        errors = [_difference(some, lambda row, t=float(one): row.at(t)) for one in grid]  # type: ignore[misc]
        best = int(np.argmin(errors))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 12)])
    return float(np.sqrt(low * high))


def _where(rows: Sequence[_Rows], plain: float) -> tuple[str, Message]:
    """What the differences have in common: their place in the sequence, or a few tokens."""
    size = np.concatenate([np.abs(row.plain() - row.recorded) for row in rows])
    place = np.concatenate([len(row.sample.prompt) + np.arange(len(row.recorded)) for row in rows])
    token = np.concatenate([np.array(row.sample.response) for row in rows])
    mean = f"{plain:.3g}"
    per_token = {one: float(size[token == one].mean()) for one in np.unique(token).tolist()}
    wrong = [one for one, value in per_token.items() if value > 10 * max(float(np.median(size)), 1e-6)]
    if wrong and len(wrong) <= max(3, len(per_token) // 20) and size[np.isin(token, wrong)].sum() > 0.8 * size.sum():
        return "tokens", Message("rollout.tokens", mean=mean, number=len(wrong), first=wrong[0])
    early, late = size[place <= np.median(place)].mean(), size[place > np.median(place)].mean()
    if late > 4 * early:
        return "position", Message("rollout.position", mean=mean, early=f"{early:.3g}", late=f"{late:.3g}")
    per_sample = [float(np.abs(row.plain() - row.recorded).mean()) for row in rows]
    bad = [row.number + 1 for row, value in zip(rows, per_sample) if value > NORMAL]
    if 0 < len(bad) < len(rows) / 2:
        return "samples", Message("rollout.samples", mean=mean, bad=len(bad), number=len(rows), first=bad[0])
    return "model", Message("rollout.model", mean=mean)


def answer(found: CheckedSamples) -> list[str]:
    figures, worst = found.differences.figures(), found.differences.worst
    return [
        found.sentence,
        f"  {count(len(found.differences.tokens), 'token')}: mean {figures['mean']:.3g}, 90% {figures['p90']:.3g}, "
        f"99% {figures['p99']:.3g}, maximum {figures['max']:.3g}; k3 KL {figures['k3_mean']:.3g}, "
        f"maximum {figures['k3_max']:.3g} nats",
        f"  largest: sample {int(worst.sequence) + 1}, position {worst.position}, token {worst.token}: "
        f"rollout {worst.rollout:.6g}, model {worst.trainer:.6g}",
        *(f"  {note}" for note in found.notes),
    ]
