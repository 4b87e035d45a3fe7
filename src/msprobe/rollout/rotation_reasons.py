"""Why rotated q or k differ: positions, the base (theta), the scale of positions.

A rotation multiplies a pair of columns, as a complex number, by exp(i * position * frequency). So the quotient of what
the rollout recorded and what float64 gives has the angle that is wrong, for each row and frequency.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from msprobe.rollout.judge import Finding, row_kinds
from msprobe.rollout.reference import QUERY
from msprobe.rollout.replay import Replay

Array = np.ndarray[Any, Any]
_OFFSETS = (1, -1, 2, -2, 3, -3)


def explain_rotation(replay: Replay, finding: Finding, expected: float) -> Optional[tuple[str, str]]:
    """The cause and its sentence; None if no rotation explains the difference."""
    rows, recorded, exact = replay.collect(finding.node)
    if finding.rows == "decode rows only":
        chosen = np.isin(rows, row_kinds(replay).decode)
        rows, recorded, exact = rows[chosen], recorded[chosen], exact[chosen]
    position = replay.rollout.rows.position[rows]
    given = replay.rollout.rows.given[rows]
    rotary = next((one for path, one in replay.reference.modules.items() if path.endswith("rotary_emb")), None)
    settings = replay.reference.attention.get(finding.node.path)
    if rotary is None or settings is None or not hasattr(rotary, "inv_freq"):
        return None
    frequency = rotary.inv_freq.double().numpy()
    heads = settings["heads"][0 if finding.node.slot == QUERY else 1]
    before, after = (_complex(one, heads, len(frequency)) for one in (exact, recorded))
    if before is None or after is None:
        return None

    def error(angle: Array) -> float:
        """What remains if the exact values are turned by an angle [rows, frequencies]."""
        turned = before * np.exp(1j * angle)[:, None, :]
        return float(np.linalg.norm(after - turned) / max(float(np.linalg.norm(before)), 1e-300))

    limit = max(4 * expected, 1e-5)
    best = min(_OFFSETS, key=lambda one: error(np.outer(np.full(len(rows), one), frequency)))
    if error(np.outer(np.full(len(rows), best), frequency)) < limit:
        wrong = (given >= 0) & (given != position)
        told = f"; it received {given[wrong][0]} at position {position[wrong][0]}" if wrong.any() else ""
        return "position", f"positions are off by {best:+d} in the rollout{told}"
    used = _measured(before, after, position, frequency)
    if used is None:
        return None
    if error(np.outer(position, used - frequency)) > max(limit, 0.02):
        return None
    ratio = used / frequency
    if ratio.std() < 0.02 * abs(ratio.mean()):
        return (
            "rope_scaling",
            f"positions are divided by {1 / ratio.mean():.3g} in the rollout (scaling of the rotation)",
        )
    theirs, mine = _base(used), _base(frequency)
    if theirs is None or mine is None:
        return "rope_scaling", "the rollout scales the frequencies of the rotation differently"
    return "theta", f"the base of the rotation (theta) is {theirs:.3g} in the rollout and {mine:.3g} in the trainer"


def _complex(values: Array, heads: int, frequencies: int) -> Optional[Array]:
    """The rotated columns as complex numbers, [rows, heads, frequencies]."""
    size = values.shape[1] // heads
    if size < 2 * frequencies:
        return None
    split = values.reshape(len(values), heads, size)
    made: Array = split[..., :frequencies] + 1j * split[..., frequencies : 2 * frequencies]
    return made


def _measured(before: Array, after: Array, position: Array, frequency: Array) -> Optional[Array]:
    """The frequencies that the rollout used, refined over growing positions."""
    used = frequency.astype(np.float64).copy()
    known = np.zeros(len(frequency), dtype=bool)
    for last in (1, 2, 4, 8, 16, 32, 64):
        chosen = np.flatnonzero((position >= max(last // 2, 1)) & (position <= last))
        if not len(chosen):
            continue
        turned = before[chosen] * np.exp(1j * np.outer(position[chosen], used - frequency))[:, None, :]
        quotient = (after[chosen] * np.conj(turned)).sum(1)  # heads
        angle = np.angle(quotient) / position[chosen][:, None]
        weight = np.abs(quotient) * position[chosen][:, None]
        used += (angle * weight).sum(0) / np.maximum(weight.sum(0), 1e-300)
        known |= True
    return used if known.all() and (used > 0).all() else None


def _base(frequency: Array) -> Optional[float]:
    """theta of frequencies theta ** (-2j / d); None if they are not of this form."""
    place = 2 * np.arange(len(frequency)) / (2 * len(frequency))
    weight = np.where(frequency > 1e-4, 1.0, 0.0)  # slow ones hardly turn
    if weight.sum() < 2:
        return None
    slope = -(weight * place * np.log(frequency)).sum() / max((weight * place**2).sum(), 1e-300)
    fitted = np.exp(-slope * place)
    if np.abs(np.log(fitted / frequency) * weight).max() > 0.05:
        return None
    return float(np.exp(slope))
