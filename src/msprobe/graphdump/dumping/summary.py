"""What the worker reports at the end of a dump."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DumpSummary:
    """Counts and notes. `peak` is the most bytes of temporary files, `paused` how often the training was paused,
    `matched` the entries of `kernels` that selected an operator."""

    tensors: int = 0
    rows: int = 0
    kept: int = 0
    paused: int = 0
    peak: int = 0
    notes: list[str] = field(default_factory=list)
    matched: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def match(self, entries: list[str]) -> None:
        self.matched += [entry for entry in entries if entry not in self.matched]
