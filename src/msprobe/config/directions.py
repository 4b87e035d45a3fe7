"""What a directed run does besides recording: `msprobe again` and `msprobe prove` write this file for the script that
they start, and the process of the script reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

REFUSED = "refused.txt"
"""A run that cannot be directed writes the reason here, next to its directions, and ends."""


@dataclass(frozen=True)
class Repeat:
    """Runs one call `times` more, where the script makes it, and writes what came out to `report`. `results` is a
    directory for the results of a module, in its dtype and with wider floats."""

    name: str
    step: int
    rank: Optional[int]
    times: int
    report: str
    results: str = ""


@dataclass(frozen=True)
class Remedies:
    """What makes a run repeatable. `seed` replaces every number that the script seeds a generator with."""

    seed: Optional[int] = None
    deterministic: bool = False
    threads: Optional[int] = None


@dataclass(frozen=True)
class Graft:
    """Gives one call the values of a different run. `what` is output, input, gradient or parameters. `values` are
    files, in the order of the tensors of that part; None keeps the call's own value. `names`: of the parameters.
    `given`: a gradient is put only if the gradients that come in agree with these, an output only if the tensors among
    the arguments do."""

    name: str
    step: int
    rank: Optional[int]
    what: str
    values: tuple[Optional[str], ...]
    names: tuple[str, ...] = ()
    given: tuple[Optional[str], ...] = ()


@dataclass(frozen=True)
class Directions:
    """`config` is the path of a config.json. The script ends after step `last`, without it at its own end. `whole`: a
    step has everything since the step before, and further calls are recorded. `report` is a directory for what the
    grafts did."""

    config: str
    last: Optional[int]
    repeat: Optional[Repeat] = None
    remedies: Remedies = field(default_factory=Remedies)
    grafts: tuple[Graft, ...] = ()
    whole: bool = True
    report: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        path.chmod(0o640)


def read_directions(path: Path) -> Directions:
    """Reads a file that `Directions.write` wrote."""
    value = json.loads(path.read_text(encoding="utf-8"))
    repeat = value.get("repeat")
    return Directions(
        str(value["config"]),
        None if value["last"] is None else int(value["last"]),
        None if repeat is None else Repeat(**repeat),
        Remedies(**value["remedies"]),
        tuple(_read_graft(one) for one in value["grafts"]),
        bool(value["whole"]),
        str(value["report"]),
    )


def _read_graft(value: dict[str, Any]) -> Graft:
    return Graft(**{**value, **{key: tuple(value[key]) for key in ("values", "names", "given")}})


def write_report(path: str, found: dict[str, Any]) -> None:
    """Writes what a directed run has found at a call."""
    file = Path(path)
    file.write_text(json.dumps(found), encoding="utf-8")
    file.chmod(0o640)
