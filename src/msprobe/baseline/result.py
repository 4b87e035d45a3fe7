"""The result of one check: the answer, with what it was compared, how strictly, and which lines changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from msprobe.baseline.changed_lines import Change, changed_lines
from msprobe.baseline.machine import Machine, machine_of
from msprobe.baseline.store import Baseline, Store
from msprobe.baseline.verdict import Answer, check
from msprobe.dump.reader import open_dump
from msprobe.messages import Message, beside


@dataclass(frozen=True)
class CheckResult:
    """`unlike` is what is different on the machine of the baseline; `changes` are changed lines near the origin, of
    `all_changes` in the repository. `seconds` is the CPU time of the command with msprobe."""

    baseline: Baseline
    machine: Machine
    bitwise: bool
    unlike: list[str]
    answer: Answer
    changes: list[Change]
    all_changes: int
    seconds: Optional[float]

    @property
    def bare_seconds(self) -> Optional[float]:
        """CPU time of the command without msprobe, if it was measured on such a machine."""
        return self.baseline.bare_seconds if not self.unlike else None

    def summary(self) -> dict[str, Any]:
        """What `msprobe check --json` prints."""
        answer = self.answer
        place = answer.place
        said = {"sentence": answer.sentence, "notes": answer.comparison.notes}
        return {
            "name": self.baseline.name,
            "verdict": answer.verdict.replace(" ", "_"),
            "passed": answer.passed,
            **said,
            **beside(said, "sentence", "notes"),
            "origin": None
            if place is None
            else {key: getattr(place, key) for key in ("call", "module", "step", "rank", "source")},
            "changed_lines": [asdict(change) for change in self.changes],
            "all_changed_places": self.all_changes,
            "tolerance": "bitwise" if self.bitwise else "rounding",
            "unlike": self.unlike,
            "values_with_other_bytes": answer.other_bytes,
            "rows": sum(answer.comparison.counts.values()),
            "machine": asdict(self.machine),
            "baseline": {**asdict(self.baseline.machine), "saved": self.baseline.saved, "commit": self.baseline.commit},
            "seconds": self.seconds,
            "bare_seconds": self.bare_seconds,
        }


def check_dump(
    store: Store,
    name: str,
    dump: Path,
    work: Path,
    tolerance: str = "auto",
    seconds: Optional[float] = None,
    other_layout: bool = False,
) -> CheckResult:
    """Checks a collected run against the baseline that fits it best. `work` is an empty directory."""
    machine = machine_of(open_dump(dump).ranks[0].run)
    baseline = store.choose(name, machine)
    golden = store.unpack(baseline, work)
    unlike = baseline.machine.unlike(machine)
    bitwise = tolerance == "bitwise" or (tolerance == "auto" and not unlike and baseline.exact is True)
    answer = check(dump, golden, bitwise, other_layout)
    if answer.is_other_model:
        asked = Message("baseline.right_one", name=repr(name))
        answer = replace(answer, sentence=Message("also", parts=[answer.sentence, asked]))
    changes: Sequence[Change] = []
    count = 0
    if not answer.passed:
        frames = answer.place.frames if answer.place is not None else ()
        changes, count = changed_lines(Path.cwd(), baseline.commit, frames, answer.sentence)
    return CheckResult(baseline, machine, bitwise, unlike, answer, list(changes), count, seconds)
