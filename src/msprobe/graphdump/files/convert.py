"""Converts asynchronous dump files to npy, bin or pt: one directory tree in, one out.

A file or tensor that cannot be converted is reported, and the conversion continues. The names of the output files
come from the name of the input file, never from its content: nothing is written outside `out`.
"""

from __future__ import annotations

import csv
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, cast

import numpy as np
import numpy.typing as npt

from msprobe.dump.tensor_files.codec import Payload, encode
from msprobe.graphdump.files import layout, names
from msprobe.graphdump.files.async_file import AsyncFile, AsyncFileError, Slot
from msprobe.graphdump.files.datatypes import ascend_token, is_raw, mindspore_token
from msprobe.graphdump.files.directory import parse_place

FAILED_LIST = "convert_failed_file_list.txt"
KINDS = ("npy", "bin", "pt")
_OTHER_FILES = {".npy", ".pt", ".bin", ".csv", ".json", ".ir", ".pb", ".txt", ".dot", ".log"}


@dataclass(frozen=True)
class Request:
    """The user's request. `inputs` and `outputs` are the wanted indices; both None means all."""

    target: Optional[str] = None
    kind: str = "npy"
    shape: Optional[tuple[int, ...]] = None
    inputs: Optional[frozenset[int]] = None
    outputs: Optional[frozenset[int]] = None
    sync_names: bool = False
    ascend_names: bool = False
    """As Ascend names tensors at jit_level O2. What numpy has no type for (bfloat16, int4) stays as it is stored."""

    def wants(self, slot: Slot) -> bool:
        if self.inputs is None and self.outputs is None:
            return True
        wanted = {"input": self.inputs, "output": self.outputs}.get(slot.io)
        return wanted is not None and slot.index in wanted


@dataclass(frozen=True)
class Job:
    """One file to convert: its path, its full name, and the output directory."""

    source: Path
    name: str
    directory: Path


@dataclass
class Outcome:
    """The result for one file. It failed if there are `errors`; other tensors may still be in `written`."""

    source: Path
    written: list[Path] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan(source: Path, out: Path, sync_names: bool = False) -> tuple[list[Job], int]:
    """The files to convert, and the number of other files: those with a suffix, and raw tensor files."""
    if source.is_file():
        original = names.read_mapping(source.parent).get(source.name, source.name)
        return [Job(source, original, out / _place(source.parent, Path(), sync_names))], 0
    jobs: list[Job] = []
    others = 0
    unlisted: list[OSError] = []
    for folder, folders, files in os.walk(source, onerror=unlisted.append):
        folders.sort()
        others += len(files)
        here = Path(folder)
        taken = sorted(name for name in files if name[0] != "." and Path(name).suffix.lower() not in _OTHER_FILES)
        if not taken or out.resolve() == here.resolve() != source.resolve():
            continue
        mapping = names.read_mapping(here)
        relative = here.relative_to(source)
        directory = out / _place(here, relative, sync_names)
        mine = [name for name in taken if names.parse_tensor(mapping.get(name, name)) is None]
        jobs += [Job(here / name, mapping.get(name, name), directory) for name in mine]
        others -= len(mine)
    jobs += [Job(Path(error.filename), "", out) for error in unlisted]  # these fail later and are reported
    return jobs, others


def _place(here: Path, relative: Path, sync_names: bool) -> Path:
    """The output directory for the files in `here`: the same relative path, or that of a synchronous dump. If the user
    gave a single directory of a dump, the directories above it give rank, graph and iteration."""
    if not sync_names:
        return relative
    named = _sync_directory(relative.as_posix())
    found = parse_place(os.path.abspath(here)) if named is None else None  # noqa: PTH100 - as in directory.scan
    if found is not None:
        named = Path(f"rank_{found.rank}", found.net, str(found.graph), str(found.iteration or 0))
    return named or relative


def convert_all(jobs: Sequence[Job], request: Request, workers: Optional[int] = None) -> Iterator[Outcome]:
    """Converts all jobs in several threads and yields the outcomes in the order of `jobs`."""
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(lambda job: convert_file(job, request), jobs)


def convert_file(job: Job, request: Request) -> Outcome:
    """Converts the wanted tensors of one file. A bad file or a disk error is an error in the outcome, not raised."""
    outcome = Outcome(job.source)
    try:
        with AsyncFile(job.source) as file:
            wanted = [slot for slot in file.slots if request.wants(slot)]
            if not wanted:
                outcome.errors.append(f"no such input or output; the file has {_list_slots(file)}")
            if file.unused_bytes:
                outcome.notes.append(f"{file.unused_bytes} bytes after the last tensor are ignored")
            for slot in wanted:
                if slot.size == 0 and slot.shape.count(0) == 0:
                    outcome.notes.append(f"{slot.name}: no data was dumped")
                    continue
                try:
                    outcome.written.append(_write(file, slot, job, request, outcome))
                except (AsyncFileError, layout.LayoutError, OSError) as error:
                    outcome.errors.append(_reason(slot, error))
    except (AsyncFileError, OSError) as error:
        outcome.errors.append(error.strerror or str(error) if isinstance(error, OSError) else str(error))
    return outcome


def _list_slots(file: AsyncFile) -> str:
    return ", ".join(slot.name for slot in file.slots) or "no tensors"


def _reason(slot: Slot, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(slot.name) else f"{slot.name}: {text}"


def _write(file: AsyncFile, slot: Slot, job: Job, request: Request, outcome: Outcome) -> Path:
    array, layout_name = _change_layout(file.array(slot), slot, request)
    kind = request.kind
    if request.ascend_names and is_raw(slot.type):
        array, kind = file.stored(slot), "bin"
    elif kind == "npy":
        array = array.astype(slot.type.saved, copy=False)
    if request.target is not None and slot.is_blocked and not (request.shape or slot.original_shape):
        outcome.notes.append(f"{slot.name}: the original shape is unknown, so the padding stays (give it with -s)")
    name = _output_name(job, slot, array.shape, layout_name, request)
    job.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    if len(os.fsencode(name)) > names.LONGEST:
        name = _register_long_name(job.directory, name)
    _save(job.directory / name, array, kind)
    return job.directory / name


def _change_layout(array: npt.NDArray[Any], slot: Slot, request: Request) -> tuple[npt.NDArray[Any], str]:
    """The array in the wanted layout, and the name of that layout."""
    source, target = slot.format, request.target
    if not slot.is_blocked:
        array = array if request.shape is None else _reshape(array, request.shape)
        if target is None or target == source:
            return array, source
        converted = layout.convert(array, source, target)
        return converted, source if converted is array else target
    if target is None:
        if request.shape is not None:
            raise layout.LayoutError(f"-s needs -f for a tensor in {source}")
        return array, source
    if slot.sub_format > 1:
        raise layout.LayoutError(f"{source} in {slot.sub_format} groups is not supported")
    return layout.convert(array, source, target, request.shape or slot.original_shape, slot.original_format), target


def _reshape(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return array.reshape(shape)
    except ValueError:
        raise layout.LayoutError(f"cannot reshape the stored shape {array.shape} to {shape}") from None


def _output_name(job: Job, slot: Slot, shape: tuple[int, ...], layout_name: str, request: Request) -> str:
    if request.sync_names or request.ascend_names:
        operator = names.parse_async(job.name)
        if operator is None:
            raise AsyncFileError(f"the file name of an operator is expected, not {job.name!r}")
        stem = f"{operator.type}.{operator.name}.{operator.task}.{operator.stream}.{operator.timestamp}"
        if request.ascend_names:
            return f"{stem}.{slot.name}.{layout_name}.{ascend_token(slot.type)}{'' if is_raw(slot.type) else '.npy'}"
        return f"{stem}.{slot.name}.{layout_name}.{mindspore_token(slot.type)}.{request.kind}"
    dtype = f".{slot.type.name}" if request.kind == "bin" else ""
    return f"{job.name}.{slot.name}.{names.shape_token(shape)}{dtype}.{request.kind}"


_mapping_lock = threading.Lock()


def _register_long_name(directory: Path, name: str) -> str:
    short = names.shorten(name)
    with _mapping_lock:
        if names.read_mapping(directory).get(short) != name:
            with open(directory / names.MAPPING, "a", newline="", encoding="utf-8", opener=_private) as file:
                csv.writer(file, lineterminator="\n").writerow([short, name])
    return short


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


def _save(path: Path, array: npt.NDArray[Any], kind: str) -> None:
    """Writes a temporary file and renames it: an interrupted run leaves no incomplete tensor."""
    descriptor, name = tempfile.mkstemp(prefix=".convert-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            array = np.ascontiguousarray(array).reshape(array.shape)
            if kind == "npy":
                np.save(file, array, allow_pickle=False)
            elif kind == "pt":
                data = array.reshape(-1).view(np.uint8)
                for part in encode(Payload(array.dtype.name, array.shape, data, "pt")):
                    file.write(memoryview(cast(bytes, part)))
            else:
                array.tofile(file)
            os.fchmod(file.fileno(), 0o640)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


_DEVICE_TREE = re.compile(
    r"(?:.*/)?(?P<rank>\d+)/(?P<net>[^/]*[^/\d][^/]*)(?:/(?P<graph>\d+)(?:/(?P<iteration>\d+))?)?"
)


def _sync_directory(place: str) -> Optional[Path]:
    """The directory that `msprobe graph` reads: `{device}/{net}_graph_{g}/{g}/{iteration}` of old dumps and
    `{time}/{device}/{model}[/{id}[/{iteration}]]` of acl dumps become `rank_{device}/{net}/{g}/{iteration}`."""
    match = _DEVICE_TREE.fullmatch(place)
    if match is None:
        return None
    graph, iteration = match["graph"] or "0", match["iteration"] or "0"
    return Path(f"rank_{match['rank']}") / re.sub(rf"_graph_{graph}$", "", match["net"]) / graph / iteration
