"""Why the result of attention differs although q, k and v are the trainer's: scale, softcap, window, KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Optional

import numpy as np

from msprobe.rollout.judge import Finding
from msprobe.rollout.reference import KEY, QUERY, VALUE, Node, plain_attention
from msprobe.rollout.replay import Replay

Array = np.ndarray[Any, Any]
_SEQUENCES = 4
_FIT = 2.0


class _Attention:
    """The recorded q, k, v and results of one layer, for some sequences."""

    def __init__(self, replay: Replay, finding: Finding) -> None:
        import torch

        path = finding.node.path
        self.settings = replay.reference.attention[path]
        heads = self.settings["heads"]
        sources = [replay.sources.get(Node(path, slot)) for slot in (QUERY, KEY, VALUE)] + [
            replay.sources.get(finding.node)
        ]
        tables = [None if one is None else one.values(replay.rollout) for one in sources]
        self.parts: list[tuple[Any, ...]] = []
        if any(one is None for one in tables):
            return
        pairs = [pair for pair in replay.pairs if int((pair.rollout_rows >= 0).sum()) > 1]
        for pair in sorted(pairs, key=lambda one: -len(one.tokens))[:_SEQUENCES]:
            count = int((pair.rollout_rows >= 0).cumprod().sum())
            rows = pair.rollout_rows[:count]
            values = [torch.from_numpy(one[rows]) for one in tables if one is not None]
            shaped = [
                one.reshape(count, number, -1).transpose(0, 1)[None]
                for one, number in zip(values, (heads[0], heads[1], heads[1], heads[0]))
            ]
            self.parts.append(tuple(shaped))

    def error(self, function: Callable[..., Any]) -> float:
        """What remains with a hypothesis: a function of q, k, v and the number of tokens."""
        error = size = 0.0
        for query, key, value, result in self.parts:
            made = function(query, key, value)
            error += float(((made - result) ** 2).sum())
            size += float((made**2).sum())
        return float(np.sqrt(error / max(size, 1e-300)))


def explain_attention(replay: Replay, finding: Finding, expected: float) -> Optional[tuple[str, str]]:
    """The cause and its sentence; None if nothing explains it."""
    attention = _Attention(replay, finding)
    if not attention.parts:
        return None
    plain = attention.error(_attend(attention.settings))
    for cause, text, function in _hypotheses(attention):
        error = attention.error(function)
        if error < max(_FIT * expected, plain / (10 if cause == "kv_cache" else 50)):
            return cause, text
    return None


def _attend(settings: dict[str, Any], **changes: Any) -> Callable[..., Any]:
    def function(query: Any, key: Any, value: Any) -> Any:
        mask = causal(query.shape[2], changes.get("window", settings["window"]), changes.get("own", True))
        cast = changes.get("cache")
        if cast is not None:
            key, value = cast(key), cast(value)
        if changes.get("interleaved"):
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)
        scale = changes.get("scale", settings["scale"])
        return plain_attention(
            query, key, value, mask=mask, scale=scale, softcap=changes.get("softcap", settings["softcap"])
        )

    return function


def causal(length: int, window: Optional[int] = None, own: bool = True) -> Any:
    """The mask of causal attention over the last `window` positions; without `own`, not the position itself."""
    import torch

    row, column = torch.arange(length)[:, None], torch.arange(length)[None]
    allowed = column <= row if own else (column < row) | (row == 0)
    if window:
        allowed &= column > row - window
    return torch.where(allowed, 0.0, float("-inf")).double()[None, None]


def _hypotheses(attention: _Attention) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    import torch

    settings = attention.settings
    for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"):
        rounded = partial(_round_to, dtype=getattr(torch, name))
        yield "kv_cache", f"keys and values are kept in {name}", _attend(settings, cache=rounded)
    for name, bits in (("float8_e4m3fn", 3), ("float8_e5m2", 2)):
        cut = partial(_cut_off, bits=bits)
        yield "kv_cache", f"keys and values are kept in {name}, cut off and not rounded", _attend(settings, cache=cut)
    yield "heads", "key heads are repeated in a different order", _attend(settings, interleaved=True)
    scale = _search(attention, "scale", settings["scale"] / 32, settings["scale"] * 32)
    yield (
        "scale",
        f"the scale is {scale:.4g} in the rollout and {settings['scale']:.4g} in the trainer",
        _attend(settings, scale=scale),
    )
    if settings["softcap"]:
        yield (
            "softcap",
            f"the rollout does not cap the scores (softcap {settings['softcap']:g})",
            _attend(settings, softcap=None),
        )
    cap = _search(attention, "softcap", 0.5, 200.0)
    yield "softcap", f"the scores are capped at {cap:.3g} in the rollout (softcap)", _attend(settings, softcap=cap)
    longest = max(part[0].shape[2] for part in attention.parts)
    errors = {size: attention.error(_attend(settings, window=size)) for size in range(1, longest + 1)}
    best = min(errors, key=lambda size: (errors[size], size))
    theirs = settings["window"] if settings["window"] else "all"
    yield (
        "window",
        f"attention sees {best} positions in the rollout and {theirs} in the trainer",
        _attend(settings, window=best),
    )
    yield "mask", "a position does not see itself in the rollout", _attend(settings, own=False)


def _round_to(value: Any, dtype: Any) -> Any:
    return value.to(dtype).double()


def _cut_off(value: Any, bits: int) -> Any:
    """The value with this many bits after the leading one; the rest is dropped."""
    import torch

    part, exponent = torch.frexp(value)
    return torch.ldexp(torch.trunc(part * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


def _search(attention: _Attention, name: str, low: float, high: float) -> float:
    """The value between two bounds with the least error: a grid in the logarithm, then three finer ones."""
    for _ in range(6):
        grid = np.geomspace(low, high, 17)
        errors = [attention.error(_attend(attention.settings, **{name: float(one)})) for one in grid]
        best = int(np.argmin(errors))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 16)])
    return float(np.sqrt(low * high))
