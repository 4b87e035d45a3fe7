"""Baselines on disk: `DIRECTORY/NAME/MACHINE/` with three files.

baseline.json   versions, machine, command, commit; read first, and small
calls.txt       one line per call, for `git diff`: what an update changed
dump.zip        the dump (statistics and checksums, no tensors), compressed; the same dump gives the same bytes

A baseline comes from a repository, so its files are untrusted: names and sizes are checked before anything is written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Optional

from msprobe.baseline.index import index_lines
from msprobe.baseline.machine import Machine
from msprobe.baseline.paths import shorten_paths
from msprobe.dump import layout
from msprobe.dump.errors import DumpError, first_line
from msprobe.dump.reader import RankDump, open_dump
from msprobe.dump.untrusted.regular_files import read_regular

SCHEMA = "msprobe/baseline/1"
DIRECTORY = "baselines"
HEAD, CALLS, DUMP = "baseline.json", "calls.txt", "dump.zip"
_KEPT = (layout.DUMP, layout.STACK, layout.CONSTRUCT, layout.RUN, layout.TRAINING, layout.FLOW)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\Z")
_LARGEST_HEAD = 1 << 20
_LARGEST_ZIP = 256 << 20
_LARGEST_DUMP = 4 << 30
_MOST_ENTRIES = 100_000
_ENTRY = b"PK\1\2"
_LARGEST_STEP = 1 << 62
_COMMIT = re.compile(r"[0-9a-f]{4,64}\Z")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Baseline:
    """One golden run of one machine.

    `exact`: repeated runs on this machine gave the same bytes; None if it ran only once. `bare_seconds` is the CPU time
    of the command without msprobe, `steps` and `seed` are how it was collected.
    """

    name: str
    machine: Machine
    command: list[str]
    commit: Optional[str]
    saved: str
    msprobe: str
    exact: Optional[bool]
    steps: list[int]
    seed: Optional[int]
    calls: int
    bare_seconds: Optional[float]
    sha256: str

    @property
    def text(self) -> str:
        return f"{self.name} of {self.machine.text}"


class Store:
    """The baselines in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        return sorted(one.name for one in self.directory.iterdir() if _NAME.match(one.name) and one.is_dir())

    def of_name(self, name: str) -> list[Baseline]:
        """The baselines of all machines; raises DumpError if there is none."""
        place = self._place(name)
        keys = sorted(one.name for one in place.iterdir() if (one / HEAD).exists()) if place.is_dir() else []
        if not keys:
            there = f" There are: {', '.join(self.names()[:10])}." if self.names() else ""
            raise DumpError(
                f"There is no baseline {name!r} in {self.directory}.{there} "
                f"Make it with: msprobe baseline save {name} -- python train.py"
            )
        return [self._read(place / key) for key in keys]

    def find(self, name: str, machine: Machine) -> Optional[Baseline]:
        """The baseline of this machine; None if it has none."""
        place = self._place(name) / machine.key
        return self._read(place) if (place / HEAD).exists() else None

    def choose(self, name: str, machine: Machine) -> Baseline:
        """That of this machine, or else the one with the fewest differences. Raises DumpError if there is none, or only
        those of another framework or another major version."""
        known = self.of_name(name)
        like = [one for one in known if one.machine.framework == machine.framework]
        if not like:
            raise DumpError(
                f"The baseline {name!r} was saved with {known[0].machine.framework}, this run uses "
                f"{machine.framework}. Give a different name."
            )
        usable = [one for one in like if one.machine.major == machine.major]
        if not usable:
            raise DumpError(
                f"The baseline {name!r} was saved with {like[0].machine.framework} {like[0].machine.version}, this run "
                f"uses {machine.version}: msprobe checks within one major version. Save one for this version: "
                f"msprobe baseline save {name} -- …"
            )
        return min(usable, key=lambda one: (len(one.machine.unlike(machine)), one.saved))

    def save(self, baseline: Baseline, dump: Path, root: Path) -> Path:
        """Writes a baseline; the older one of this machine is replaced only when the new one is complete. `root` is the
        directory of the project: paths in it are stored relative to it."""
        ranks = open_dump(dump).ranks
        packed = _pack(ranks, root)
        head = {
            "schema": SCHEMA,
            **asdict(baseline),
            "calls": sum(len(rank.records) for rank in ranks),
            "sha256": hashlib.sha256(packed).hexdigest(),
        }
        place = self._place(baseline.name) / baseline.machine.key
        fresh, older = (place.with_name(f".{place.name}.{os.getpid()}.{word}") for word in ("new", "old"))
        try:
            layout.make_directory(fresh)
            layout.write_file(fresh / HEAD, [json.dumps(head, indent=1, allow_nan=False).encode() + b"\n"])
            layout.write_file(fresh / CALLS, (f"{line}\n".encode() for line in index_lines(ranks)))
            layout.write_file(fresh / DUMP, [packed])
            if place.exists():
                place.rename(older)
            fresh.rename(place)
        except OSError as error:
            raise DumpError(f"The baseline cannot be written to {place}: {error.strerror or error}.") from None
        finally:
            for left in (fresh, older):
                shutil.rmtree(left, ignore_errors=True)
        return place

    def remove(self, name: str) -> list[Path]:
        found = [self._place(one.name) / one.machine.key for one in self.of_name(name)]
        for place in found:
            if place.is_symlink():
                raise DumpError(f"{place} is a link; remove it yourself.")
            shutil.rmtree(place)
        if not any(self._place(name).iterdir()):
            self._place(name).rmdir()
        return found

    def unpack(self, baseline: Baseline, target: Path) -> Path:
        """Writes the dump of a baseline into an empty directory. Raises DumpError if it is damaged."""
        file, packed = self.file(baseline), self.verify(baseline)
        try:
            if packed.count(_ENTRY) > _MOST_ENTRIES:  # each becomes an object when the archive is opened
                raise DumpError(f"{file} has too many entries: more than {_MOST_ENTRIES}. {_REMEDY}")
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                _unpack(archive, file, target)
        except DumpError:
            raise
        except Exception as error:  # zipfile, lzma and zlib have many exceptions for damaged archives
            raise DumpError(f"{file} is damaged: {first_line(error)}. {_REMEDY}") from None
        return target

    def verify(self, baseline: Baseline) -> bytes:
        """The content of dump.zip, if its checksum is right; raises DumpError if it is not."""
        file = self.file(baseline)
        try:
            packed = read_regular(file, self.directory, _LARGEST_ZIP + 1)
        except OSError as error:
            raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
        if len(packed) > _LARGEST_ZIP or hashlib.sha256(packed).hexdigest() != baseline.sha256:
            raise DumpError(f"{file} is damaged or incomplete: its checksum is not the one in {HEAD}. {_REMEDY}")
        return packed

    def file(self, baseline: Baseline) -> Path:
        return self._place(baseline.name) / baseline.machine.key / DUMP

    def sizes(self, baseline: Baseline) -> tuple[int, int]:
        """The bytes of the compressed dump, and of all files of this baseline."""
        file = self.file(baseline)
        sizes = {one.name: one.lstat().st_size for one in file.parent.iterdir()}
        return sizes.get(DUMP, 0), sum(sizes.values())

    def _place(self, name: str) -> Path:
        check_name(name)
        return self.directory / name

    def _read(self, place: Path) -> Baseline:
        file = place / HEAD
        try:
            head = json.loads(read_regular(file, self.directory, _LARGEST_HEAD))
        except (OSError, ValueError, RecursionError) as error:
            raise DumpError(f"{file} cannot be read: {error}. {_REMEDY}") from None
        if not isinstance(head, dict) or head.get("schema") != SCHEMA:
            raise DumpError(f'{file} is not a baseline of this version of msprobe: "schema" must be {SCHEMA!r}.')
        baseline = _from_head(head)
        if baseline is None or baseline.machine.key != place.name or baseline.name != place.parent.name:
            raise DumpError(f"{file} is damaged, or was moved from a different place. {_REMEDY}")
        return baseline


_REMEDY = "Restore it from git, or save it again."


def check_name(name: str) -> None:
    """Raises DumpError for a name that cannot be a directory in the store."""
    if not _NAME.match(name) or ".." in name:
        raise DumpError(f"{name[:100]!r} is not a name for a baseline: use letters, digits, '.', '_' and '-'.")


def _from_head(head: dict[str, Any]) -> Optional[Baseline]:
    """The baseline of a head that may have any content; None if something has the wrong type."""
    machine = head.get("machine")
    if not isinstance(machine, dict) or set(machine) != {one.name for one in fields(Machine)}:
        return None
    if not all(isinstance(value, int if key == "threads" else str) for key, value in machine.items()):
        return None
    texts = ("name", "saved", "msprobe", "sha256")
    lists = {"command": str, "steps": int}
    optional = {"exact": bool, "commit": str, "seed": int, "bare_seconds": (int, float)}
    if not (
        all(isinstance(head.get(key), str) for key in texts)
        and all(isinstance(head.get(k), list) and all(isinstance(one, t) for one in head[k]) for k, t in lists.items())
        and all(head.get(key) is None or isinstance(head[key], kind) for key, kind in optional.items())  # type: ignore[arg-type]
        and isinstance(head.get("calls"), int)
    ):
        return None
    if not _is_possible(head):
        return None
    known = {one.name for one in fields(Baseline)}
    return Baseline(**{**{key: head.get(key) for key in known}, "machine": Machine(**machine)})  # type: ignore[arg-type]


def _is_possible(head: dict[str, Any]) -> bool:
    """Whether the numbers of a head can be what they say."""
    steps: list[Any] = head["steps"]
    seed, bare, commit = (head.get(key) for key in ("seed", "bare_seconds", "commit"))
    return (
        bool(steps)
        and all(type(one) is int and 0 <= one < _LARGEST_STEP for one in steps)
        and (seed is None or (type(seed) is int and abs(seed) < 1 << 64))
        and (bare is None or 0 <= bare < float("inf"))
        and (commit is None or _COMMIT.match(commit) is not None)
    )


def _pack(ranks: list[RankDump], root: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        for rank in ranks:
            for name in _KEPT:
                if (rank.path / name).exists():
                    content = shorten_paths(name, read_regular(rank.path / name, rank.path), root)
                    inside = f"{layout.step_name(rank.step or 0)}/{rank.path.name}/{name}"
                    archive.writestr(zipfile.ZipInfo(inside, _LONG_AGO), content, zipfile.ZIP_LZMA)
    return packed.getvalue()


def _unpack(archive: zipfile.ZipFile, file: Path, target: Path) -> None:
    entries = archive.infolist()
    if sum(one.file_size for one in entries) > _LARGEST_DUMP:
        raise DumpError(f"{file} is too large: more than {_LARGEST_DUMP >> 30} GB when unpacked.")
    for one in entries:
        parts = one.filename.split("/")
        if len(parts) != 3 or layout.parse_step(parts[0]) is None or parts[2] not in _KEPT:
            raise DumpError(f"{file} is damaged: it has a file {one.filename!r}. {_REMEDY}")
        if not layout.is_rank_name(parts[1]):
            raise DumpError(f"{file} is damaged: {parts[1]!r} is not a rank. {_REMEDY}")
        place = target.joinpath(*parts)
        layout.make_directory(place.parent)
        with archive.open(one) as content:
            layout.write_file(place, _chunks(content, one.file_size))


def _chunks(content: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := content.read(min(size, layout.CHUNK))):
        size -= len(chunk)
        yield chunk
