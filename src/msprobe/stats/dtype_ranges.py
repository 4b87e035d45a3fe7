"""How close the outputs of a run came to the limits of their dtype: a table at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 10


@dataclass
class _Count:
    calls: int = 0
    peak: float = 0.0
    share: float = 0.0


class Ranges:
    """Per API and dtype: outputs within a factor 2 of the largest value, and the share of subnormal 16-bit values."""

    def __init__(self) -> None:
        self._near: dict[tuple[str, str], _Count] = {}
        self._tiny: dict[tuple[str, str], _Count] = {}

    def add_near(self, name: str, dtype: str, peak: float) -> None:
        entry = self._near.setdefault((title_of(name), dtype), _Count())
        entry.calls += 1
        entry.peak = max(entry.peak, peak)

    def add_tiny(self, name: str, dtype: str, share: float) -> None:
        entry = self._tiny.setdefault((title_of(name), dtype), _Count())
        entry.calls += 1
        entry.share = max(entry.share, share)

    def tables(self) -> list[str]:
        tables = []
        if self._near:
            rows = sorted(self._near.items(), key=lambda item: (-item[1].calls, item[0]))
            lines = [f"{title} ({dtype}): {_outputs(e)}, largest {e.peak:.4g}" for (title, dtype), e in rows]
            tables.append(_table("near overflow (within a factor 2 of the dtype's largest value)", lines))
        if self._tiny:
            rows = sorted(self._tiny.items(), key=lambda item: (-item[1].share, item[0]))
            lines = [f"{title} ({dtype}): {_outputs(e)}, up to {e.share:.2%} of one" for (title, dtype), e in rows]
            tables.append(_table("underflow (values below the smallest normal number)", lines))
        return tables


def title_of(name: str) -> str:
    """`Torch.exp.3.forward` -> `Torch.exp forward`; `Module.a.Linear.forward.0` -> `Module.a.Linear forward`."""
    parts = name.split(".")
    direction = parts[-1] if not parts[-1].isdigit() else parts[-2] if len(parts) > 1 else ""
    return f"{'.'.join(parts[:-2])} {direction}" if len(parts) > 2 else name


def _table(title: str, lines: list[str]) -> str:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n  ".join([f"overflow_check: {title}:", *lines[:_SHOWN], *more])


def _outputs(one: _Count) -> str:
    return "1 output" if one.calls == 1 else f"{one.calls} outputs"
