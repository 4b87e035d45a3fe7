"""Opens what the user wants to view: units of rows from any source, and the answer on top.

A single dump and the results of run_ut become rows without a golden side, so one page shows everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from msprobe.compare.result import UnitResult
from msprobe.compare.rows import Row
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.stack_frames import Frame
from msprobe.view.watched import Watched, is_watched

Sides = tuple[Source, Optional[Source]]


@dataclass
class Answer:
    """The text on top of the page.

    `verdict` is same, differs, not_compared, found, clean or proved. `facts` are (key, text) pairs; the page
    translates the keys. `unit` and `row` say where Enter goes. `stacks` give the source lines of both runs.
    `about_row` is False if the row only shows what the training loop did: its call and numbers are not the answer.
    """

    verdict: str
    sentence: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unit: int = 0
    row: Optional[Row] = None
    stacks: tuple[list[str], list[str]] = ([], [])
    ranks: list[int] = field(default_factory=list)
    """The ranks with the fault, if the ranks of a run were compared as one."""
    made: tuple[Optional[Frame], Optional[Frame]] = (None, None)
    """The lines that make the module, if the answer is about it."""
    model: tuple[Optional[Frame], Optional[Frame]] = (None, None)
    """The lines of the scripts that make the model, if installed code makes the module."""
    about_row: bool = True


@dataclass
class Material:
    """`kind` is comparison, dump, check or watched. `sides` opens the tensors of a unit; empty in an export.

    `living`: a dump was not finished when it was opened."""

    kind: str
    target: Path
    golden: Optional[Path]
    answer: Answer
    units: list[UnitResult]
    sides: list[Sides] = field(default_factory=list)
    watched: Optional[Watched] = None
    living: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    proof: Optional[dict[str, Any]] = None
    """What `msprobe prove` found, checked."""


Progress = Callable[..., Any]


def open_material(
    target: Path,
    golden: Optional[Path] = None,
    mapping: Optional[Mapping[str, str]] = None,
    progress: Optional[Progress] = None,
) -> Material:
    """Raises DumpError if there is nothing to view."""
    from msprobe.view.check_results import is_check, load_check
    from msprobe.view.comparing import load_comparison
    from msprobe.view.proof import is_proof, load_proof
    from msprobe.view.single_dump import load_dump

    for path in (target, golden):
        if path is not None and not path.exists():
            raise DumpError(f"{path} does not exist.")
    watched = [path for path in (target, golden) if path is not None and is_watched(path)]
    if golden is not None:
        if len(watched) == 2:
            return load_watched(target, golden)
        if watched:
            raise DumpError(f"{watched[0]} is a watched run, and the other is not. Give two watched runs or two dumps.")
        return load_comparison(target, golden, mapping or {}, progress)
    if is_proof(target):
        return load_proof(target, progress)
    if is_check(target):
        return load_check(target)
    if watched:
        return load_watched(target, None)
    return load_dump(target)


def load_watched(target: Path, golden: Optional[Path]) -> Material:
    run = Watched(target, golden)
    verdict, sentence, facts, notes = run.answer()
    return Material("watched", target, golden, Answer(verdict, sentence, facts, notes), [], [], run)
