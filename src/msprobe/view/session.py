"""What is open in the browser: the material and its table, reloaded when the run grows or calls are matched by hand."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Optional

from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.messages import translations
from msprobe.system.collector import at_rest
from msprobe.view.call_details import CallDetails, item_of
from msprobe.view.check_results import DEPTHS as CHECK_DEPTHS
from msprobe.view.columns import Table
from msprobe.view.material import Material, Progress, open_material
from msprobe.view.runs import describe_runs, directory_of
from msprobe.view.source_lines import Recorded, code_of
from msprobe.view.tensors import TensorPair

MAPPING = "msprobe_mapping"
LEAST_PAUSE = 1.0
OPEN_TENSORS = 4
SILENCE = 600.0
"""Seconds after which an unfinished dump that does not grow is that of a run that crashed."""
_GROWING = ("journal.jsonl", "dump.json", "debug.json")


class Contents:
    """One state of the view; immutable."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.table = Table(material.units)
        self._recorded = Recorded(material.target, material.golden)
        self.details = CallDetails(self.table, bool(material.sides), self._recorded)
        self.answer = self._describe_answer()

    def _describe_answer(self) -> dict[str, Any]:
        material, answer = self.material, self.material.answer
        row = answer.row
        about = row if answer.about_row else None
        said = [answer.sentence, *answer.notes, *(text for _, text in answer.facts)]
        said += [cause["sentence"] for cause in (material.proof or {}).get("causes", ())]
        return {
            "kind": material.kind,
            "target": str(material.target),
            "golden": None if material.golden is None else str(material.golden),
            "verdict": answer.verdict,
            "sentence": answer.sentence,
            "facts": answer.facts,
            "notes": answer.notes,
            "ranks": answer.ranks,
            "counts": material.summary,
            "row": -1 if row is None else self.table.number_of(answer.unit, row),
            "slot": "" if about is None else about.name,
            "sides": None if about is None else {"target": item_of(about.target), "golden": item_of(about.golden)},
            "code": code_of(
                answer.stacks, self._recorded.of(material.units[answer.unit]), about, answer.made, answer.model
            )
            if any(answer.stacks)
            else None,
            "runs": describe_runs(self._recorded.runs()),
            "directory": directory_of(self._recorded.runs()),
            "proof": material.proof,
            "tensors": _has_tensors(material),
            "watched": material.watched is not None,
            "chinese": translations(said),
        }


def _has_tensors(material: Material) -> bool:
    """Whether a run has saved tensors. A Graph-mode Dump has nothing else."""
    sources = [source for sides in material.sides for source in sides if source is not None]
    return any(not isinstance(one, RankDump) or (one.path / layout.TENSORS).is_dir() for one in sources)


class Session:
    """Thread-safe: requests come from several threads."""

    def __init__(self, target: Path, golden: Optional[Path], progress: Optional[Progress] = None) -> None:
        self._target, self._golden = target, golden
        self._lock = threading.RLock()
        self._mapping: dict[str, str] = {}
        self._saved: Optional[Path] = None
        self._tensors: OrderedDict[tuple[int, int], TensorPair] = OrderedDict()
        self.version = 1
        self.trouble = ""
        self._stamp = self._look()
        self._contents = self._load(progress)

    @property
    def contents(self) -> Contents:
        with self._lock:
            return self._contents

    @property
    def mapping(self) -> dict[str, str]:
        with self._lock:
            return dict(self._mapping)

    def _load(self, progress: Optional[Progress] = None) -> Contents:
        begun = time.monotonic()
        with at_rest():
            contents = Contents(open_material(self._target, self._golden, self._mapping, progress))
        gc.freeze()
        now = time.monotonic()
        self._next_look = now + max(LEAST_PAUSE, 5 * (now - begun))
        return contents

    @property
    def is_living(self) -> bool:
        """Whether a run still writes what is shown. One that crashed stays unfinished, but writes nothing any more."""
        with self._lock:
            material = self._contents.material
            if material.watched is not None:
                return material.watched.is_living()
            newest = max((changed for _, _, changed in self._stamp), default=0)
            return material.living and time.time() - newest / 1e9 < SILENCE

    def refresh(self) -> int:
        """Reloads what has grown; the version tells whether anything changed."""
        with self._lock:
            if time.monotonic() < self._next_look:
                return self.version
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._contents = self._load()
                    self.trouble = ""
                    self.version += 1
                    self._tensors.clear()
                except DumpError as error:  # a file is being replaced: the next call sees it complete
                    self.trouble = str(error)
                    self._next_look = time.monotonic() + LEAST_PAUSE
            return self.version

    def match(self, target: str, golden: Optional[str]) -> int:
        """Matches two calls by hand, or removes a match, and judges everything again."""
        with self._lock:
            if self._golden is None:
                raise DumpError("Matching needs two dumps: give a golden dump too.")
            before = dict(self._mapping)
            if golden is None:
                self._mapping.pop(target, None)
            else:
                self._check_names(target, golden)
                self._mapping[target] = golden
            try:
                self._contents = self._load()
            except DumpError:
                self._mapping = before
                raise
            self._tensors.clear()
            self.version += 1
            return self.version

    def _check_names(self, target: str, golden: str) -> None:
        calls = [match for _, (match, _) in self._contents.table.groups]
        if not any(match.target is not None and match.target.name == target for match in calls):
            raise DumpError(f"The target has no call {target[:200]!r}.")
        if not any(match.golden is not None and match.golden.name == golden for match in calls):
            raise DumpError(f"The golden run has no call {golden[:200]!r}.")

    def save_mapping(self) -> Path:
        """Writes the matches to a new file for `compare -dm` in the current directory."""
        import yaml

        with self._lock:
            if not self._mapping:
                raise DumpError("No calls are matched by hand yet.")
            if self._saved is None:
                names = (f"{MAPPING}{f'_{number}' if number else ''}.yaml" for number in range(10_000))
                self._saved = next(path for name in names if not os.path.lexists(path := Path.cwd() / name))
            text = yaml.safe_dump(self._mapping, allow_unicode=True, sort_keys=False, width=1 << 20)
            layout.write_file(self._saved, [text.encode()])
            return self._saved

    def tensor(self, row: int) -> TensorPair:
        """Opens the saved tensor of a row; the last few stay open."""
        with self._lock:
            key = (self.version, row)
            if key not in self._tensors:
                contents = self._contents
                unit = contents.table.groups.unit_of(contents.table.locate(row)[0])
                if not contents.material.sides:
                    raise DumpError("Results of run_ut have no tensors.")
                self._tensors[key] = TensorPair(contents.table.row(row), contents.material.sides[unit])
                if len(self._tensors) > OPEN_TENSORS:
                    self._tensors.popitem(last=False)
            self._tensors.move_to_end(key)
            return self._tensors[key]

    def _look(self) -> tuple[Any, ...]:
        """Sizes and times of the files that grow during a run."""
        found: list[tuple[str, int, int]] = []
        for root in (self._target, self._golden):
            if root is not None and root.is_dir():
                for path in _growing(root):
                    try:
                        state = path.stat()
                    except OSError:
                        continue
                    if state.st_size:  # a reader makes an empty write-ahead log
                        found.append((str(path), state.st_size, state.st_mtime_ns))
        return tuple(found)


def _growing(root: Path) -> list[Path]:
    """`-shm` of SQLite is left out: it changes when the page itself reads."""
    paths = [path for suffix in ("", "-wal") for path in root.glob(f"watch*.sqlite{suffix}")]
    paths += [path for depth in CHECK_DEPTHS for path in root.glob(f"{depth}accuracy_checking_*.csv")]
    for depth in ("", "*/", "*/*/", "*/*/*/"):
        for name in _GROWING:
            paths += root.glob(f"{depth}{name}")
    return sorted(paths)
