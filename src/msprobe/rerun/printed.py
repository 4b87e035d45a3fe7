"""A number that a script prints, in place of the loss: `msprobe prove --number 'accuracy=0.93'`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from msprobe.dump.errors import DumpError

_NUMBER = re.compile(r"[\s:=]*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True)
class Printed:
    """The last number after `text` in what the script prints, and what the good run has printed there."""

    text: str
    golden: float

    def read(self, file: Path) -> float:
        """The number in the output of a run. Raises DumpError if it has none."""
        output = file.read_text(encoding="utf-8", errors="replace")
        found = [_NUMBER.match(output, place.end()) for place in re.finditer(re.escape(self.text), output)]
        numbers = [float(one[1]) for one in found if one is not None]
        if not numbers:
            raise DumpError(f"the script printed no number after {self.text!r}")
        return numbers[-1]


def parse_number(words: str) -> Printed:
    """`TEXT=VALUE`: VALUE is that of the good run. Raises DumpError for anything else."""
    text, _, value = words.rpartition("=")
    try:
        golden = float(value)
    except ValueError:
        golden = math.nan
    if not text or not math.isfinite(golden):
        raise DumpError(
            f"--number needs TEXT=VALUE with the number of the good run, such as accuracy=0.93, not {words}"
        )
    return Printed(text, golden)
