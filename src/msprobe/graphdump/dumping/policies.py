"""Which of MindSpore's files to keep: op_debug_mode 0 selects by name, 3 by overflow, 4 by exception."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.npy_file import load
from msprobe.graphdump.dumping.dump_settings import EXCEPTION, OVERFLOW, DumpSettings
from msprobe.graphdump.dumping.framework_config import choosing_entries
from msprobe.graphdump.dumping.raised import read_raised
from msprobe.graphdump.dumping.saving import FILE_MODE, Saver, sample
from msprobe.graphdump.dumping.staging import StagedFile, StagingDirectory
from msprobe.graphdump.dumping.summary import DumpSummary
from msprobe.graphdump.graphs.failed_operator import find_failed_inputs
from msprobe.stats import measure_array

_NO_OUTPUT = ("Send", "Print")


class Destination:
    """The dump directory: one saver per iteration, constants and operator arguments once per graph."""

    def __init__(self, settings: DumpSettings, staging: StagingDirectory, summary: DumpSummary) -> None:
        self.settings, self.staging, self.summary = settings, staging, summary
        self._savers: dict[tuple[int, int, str], Saver] = {}
        self._described: set[tuple[int, int, str]] = set()
        self._constants: dict[tuple[int, int], dict[bytes, int]] = {}

    def saver(self, rank: int, graph: int, folder: str, categories: tuple[str, ...] = ()) -> Saver:
        key = (rank, graph, folder)
        if key not in self._savers:
            directory = Path(self.settings.path, f"rank_{rank}", self.settings.net_name, str(graph), folder)
            self._savers[key] = Saver(directory, categories, self.settings.file_format == "bin")
        return self._savers[key]

    def put(self, one: StagedFile, array: npt.NDArray[Any]) -> None:
        """Saves one tensor with its statistics and the operator's arguments; removes the staged file."""
        settings, summary = self.settings, self.summary
        saver = self.saver(one.rank, one.graph, str(one.iteration), settings.statistics)
        if settings.statistics:
            saver.row(one.name, array)
            summary.rows += 1
        self._describe(one, saver, array)
        if not settings.keeps_tensors:
            self.staging.discard(one)
            return
        summary.kept += 1
        if settings.sample_mode or array.dtype.name == "bfloat16" or settings.file_format == "bin":
            saver.write(one.file, one.original, sample(array, settings.sample_num) if settings.sample_mode else array)
            self.staging.discard(one)
        else:
            saver.keep(one.path, one.file, one.original)
            self.staging.release(one)

    def _describe(self, one: StagedFile, saver: Saver, array: npt.NDArray[Any]) -> None:
        """Saves the arguments of the operator and its constant inputs, once per run."""
        operator = self.staging.operators(one.rank, one.graph).get(one.name.operator.name)
        if operator is None:
            return
        key = (one.rank, one.graph, one.name.operator.name)
        if self.settings.save_kernel_args and key not in self._described:
            path = saver.directory / f"{one.name.operator.type}.{one.name.operator.name}.json"
            try:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "w") as file:  # noqa: PTH123
                    json.dump(operator.arguments, file, indent=4)
            except OSError as error:
                self.summary.note(f"cannot save the arguments of {one.name.operator.name}: {error.strerror}")
        self._described.add(key)
        if one.name.io == "input" and one.name.slot in operator.constants and self.settings.keeps_tensors:
            self._save_constant(one, array)

    def _save_constant(self, one: StagedFile, array: npt.NDArray[Any]) -> None:
        import hashlib

        known = self._constants.setdefault((one.rank, one.graph), {})
        head = f"{array.dtype.name}{array.shape}".encode()
        digest = hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).digest()
        if digest in known:
            return
        known[digest] = len(known)
        name = f"Parameter.data-{known[digest]}.0.0.{one.name.operator.timestamp}.output.0.DefaultFormat"
        name += f".{one.name.dtype}.npy" if one.name.dtype else ".npy"
        self.saver(one.rank, one.graph, "constants").write(name, name, array)


class Policy:
    """op_debug_mode 0: keeps the files that dump_mode and kernels select."""

    def __init__(self, destination: Destination) -> None:
        self._to = destination
        self._settings = destination.settings
        self._staging = destination.staging
        self._summary = destination.summary
        self._useless_too = os.environ.get("MINDSPORE_DUMP_IGNORE_USELESS_OUTPUT") == "0"

    @property
    def frees_disk(self) -> bool:
        """Whether the worker frees disk space, so that pausing the training helps."""
        return not self._settings.keeps_tensors or bool(self._settings.sample_mode)

    def take(self, one: StagedFile) -> None:
        if not self._is_wanted(one):
            self._staging.discard(one)
            return
        array = self._read(one)
        if array is not None:
            self._put(one, array)

    def _put(self, one: StagedFile, array: npt.NDArray[Any]) -> None:
        try:
            self._to.put(one, array)
            self._summary.tensors += 1
        except DumpError as error:
            self._summary.note(str(error))
            self._staging.discard(one)

    def settle(self, last: bool) -> None:
        """Called when all present files have been taken. `last` is true when no more will follow."""

    def finish(self, failure: Optional[str]) -> None:
        """Called at the end of the run. `failure` is the text of the exception that ended it, if any."""

    def _read(self, one: StagedFile) -> Optional[npt.NDArray[Any]]:
        try:
            return load(one.path)
        except DumpError as error:
            self._summary.note(str(error))
            self._staging.discard(one)
            return None

    def _is_wanted(self, one: StagedFile) -> bool:
        kind, slot = one.name.operator.type, one.name.slot
        useless = kind in _NO_OUTPUT or (kind == "FlashAttentionScore" and slot == 2)
        if useless and one.name.io == "output" and not self._useless_too:
            return False
        if self._settings.dump_mode == 0:
            return True
        operator = self._staging.operators(one.rank, one.graph).get(one.name.operator.name)
        if self._settings.dump_mode == 2:
            return operator is not None and operator.marked
        name = operator.full_name if operator else one.name.operator.name
        entries = choosing_entries(self._settings.kernels, name)
        self._summary.match(entries)
        return bool(entries)


class OverflowPolicy(Policy):
    """op_debug_mode 3: keeps all files of operators with NaN or infinity in an output, up to overflow_number."""

    frees_disk = True

    def __init__(self, destination: Destination) -> None:
        super().__init__(destination)
        self._open: dict[tuple[int, int, int, str], list[StagedFile]] = {}
        self._found = 0
        self._made = 0
        self._first = ""

    def take(self, one: StagedFile) -> None:
        if one.name.operator.type == "Parameter" or not self._is_wanted(one):
            self._staging.discard(one)
            return
        key = (one.rank, one.graph, one.iteration, one.name.operator.name)
        self._open.setdefault(key, []).append(one)
        operator = self._staging.operators(one.rank, one.graph).get(one.name.operator.name)
        outputs = sum(staged.name.io == "output" for staged in self._open[key])
        if operator is not None and operator.outputs and outputs >= operator.outputs:
            self._judge(self._open.pop(key))

    def settle(self, last: bool) -> None:
        newest: dict[tuple[int, int], int] = {}
        for rank, graph, iteration, _ in self._open:
            newest[rank, graph] = max(newest.get((rank, graph), 0), iteration)
        for key in [key for key in self._open if last or key[2] < newest[key[0], key[1]]]:
            self._judge(self._open.pop(key))

    def _judge(self, group: list[StagedFile]) -> None:
        full = 0 < self._settings.overflow_number <= self._found
        arrays = {} if full else {one: self._read(one) for one in group}
        bad = {one.name.io for one, array in arrays.items() if array is not None and _overflows(array)}
        overflows = "output" in bad
        self._found += overflows
        if bad == {"output"}:
            self._made += 1
            self._first = self._first or f"{group[0].name.operator.name} in iteration {group[0].iteration}"
        for one in group:
            array = arrays.get(one)
            if overflows and array is not None:
                self._put(one, array)
            elif one.path.exists():
                self._staging.discard(one)

    def finish(self, failure: Optional[str]) -> None:
        text = f"{self._found} operators overflowed (NaN or infinity in an output)"
        if self._made:
            text += f"; {self._made} of them had finite inputs, the first is {self._first}"
        elif self._found:
            text += "; all had NaN or infinity in an input: it came from a parameter, an input or a constant"
        self._summary.note(text)


def _overflows(array: npt.NDArray[Any]) -> bool:
    if array.dtype.kind == "c":
        return not bool(np.isfinite(array).all())
    figures = measure_array(array)
    return bool(figures.nan or figures.posinf or figures.neginf)


class ExceptionPolicy(Policy):
    """op_debug_mode 4: keeps the inputs of the operator that raised.

    MindSpore writes the files of an operator after it has run. So the inputs of an operator that failed are the
    outputs of its producers in the same iteration, and inputs of the graph, which the training keeps if it raises."""

    frees_disk = True

    def __init__(self, destination: Destination) -> None:
        super().__init__(destination)
        self._last: dict[tuple[int, int], list[StagedFile]] = {}

    def take(self, one: StagedFile) -> None:
        kept = self._last.setdefault((one.rank, one.graph), [])
        if kept and kept[0].iteration < one.iteration:
            for old in kept:
                self._staging.discard(old)
            kept.clear()
        kept.append(one)

    def finish(self, failure: Optional[str]) -> None:
        raised = read_raised(self._staging.root)
        texts = [text for text in (failure, *(one.text for one in raised or ())) if text is not None]
        for (rank, graph), files in self._last.items():
            text = self._staging.text(rank, graph)
            operators = self._staging.operators(rank, graph)
            found = dict(find_failed_inputs(text, files, operators, "\n".join(texts) if texts else None, raised or ()))
            for name, slots in found.items():
                self._save(name, slots)
            if found:
                named = [_with_unknown(name, slots) for name, slots in found.items()]
                alone = len(named) == 1
                self._summary.note(f"{named[0]} raised" if alone else f"one of these raised: {', '.join(named)}")
            for one in files:
                self._staging.discard(one)
        if raised == []:
            self._summary.note("no graph raised an exception: nothing was saved")
        elif not texts:
            self._summary.note("no exception ended the script (those that it catches are not seen): nothing was saved")

    def _save(self, name: str, slots: dict[int, Optional[StagedFile]]) -> None:
        for slot, source in slots.items():
            array = None if source is None else load(source.path)
            if source is None or array is None:
                continue
            dtype = f".{source.name.dtype}" if source.name.dtype else ""
            moment = source.name.operator.timestamp
            file = f"{name}.0.0.{moment}.input.{slot}.{source.name.format or 'DefaultFormat'}{dtype}.npy"
            self._to.saver(source.rank, source.graph, str(source.iteration)).write(file, file, array)
            self._summary.tensors += 1
            self._summary.kept += 1


def _with_unknown(name: str, slots: dict[int, Optional[StagedFile]]) -> str:
    missing = [str(slot) for slot, source in slots.items() if source is None]
    return f"{name} (unknown: input {', '.join(missing)})" if missing else name


def choose_policy(settings: DumpSettings, staging: StagingDirectory, summary: DumpSummary) -> Policy:
    destination = Destination(settings, staging, summary)
    if settings.op_debug_mode == EXCEPTION:
        return ExceptionPolicy(destination)
    return OverflowPolicy(destination) if settings.op_debug_mode in OVERFLOW else Policy(destination)
