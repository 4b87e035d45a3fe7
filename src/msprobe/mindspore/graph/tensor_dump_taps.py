"""Taps on Ascend: `ops.TensorDump` and `ops.DumpGradient`, which write npy files from inside a graph.

Written from their documentation; it has not run on an Ascend device yet. The operators return nothing, so the number
of a call cannot travel with the data. The files are numbered in the order of writing: the n-th file of a place belongs
to the n-th call of its Cell, and gradients come in the opposite order. The operators write files in every step; the
files of a step without a listener are deleted unread.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Callable

import mindspore
import numpy as np
from mindspore import Tensor, ops

from msprobe.mindspore.graph.call_templates import CallTemplate
from msprobe.mindspore.graph.taps import Listener, Taps

GRADIENT = "gradient"
_FILE = re.compile(rf"(\d+)-(\d+)-(value|{GRADIENT})(?:_(?:in|out))?_\w+?_(\d+)\.npy\Z")
_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)
_QUIET = 0.2  # after so many seconds without a new file, the queue of the device is empty


class TensorDumpBackend:
    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self.directory = Path(tempfile.mkdtemp(prefix="msprobe-taps-"))
        atexit.register(shutil.rmtree, self.directory, ignore_errors=True)
        self._titles: list[str] = []
        dump, dump_gradient = ops.TensorDump(), ops.DumpGradient()

        def enter(title: Any) -> Any:
            return title

        def seen(number: Any, value: Any, place: Any) -> Any:
            if not isinstance(place, int):
                dump(place + "-value", ops.stop_gradient(value))
            return number

        def watched(number: Any, value: Any, place: Any) -> Any:
            if isinstance(place, int):
                return value
            seen(number, value, place)
            if value.dtype in _FLOATS:
                return dump_gradient(place + "-gradient", value, "out")
            return value

        self.enter = enter
        self.seen = seen
        self.watched = watched
        self._dump = dump

    def title(self, title: str) -> Any:
        self._titles.append(title)
        return Tensor([len(self._titles) - 1], mindspore.int32)

    def place(self, template: CallTemplate, slot: int) -> Any:
        return str(self.directory / f"{template.number}-{slot}")

    def parameter_hook(self, template: CallTemplate) -> Callable[[Any], Any]:
        dump, path = self._dump, f"{self.place(template, 0)}-{GRADIENT}"

        def hook(gradient: Any) -> Any:
            dump(path, gradient)
            return gradient

        return hook

    def drain(self) -> None:
        """The graphs of the step have run: passes their files to the listener, if there is one, and deletes them."""
        files = self._wait_for_files()
        listener = self._taps.listener
        if listener is not None:
            replay(files, self._taps, listener)
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()

    def _wait_for_files(self) -> list[Path]:
        before = -1
        files = list(self.directory.iterdir())
        while len(files) != before:
            before = len(files)
            time.sleep(_QUIET if files else 0)
            files = list(self.directory.iterdir())
        return files


def replay(files: list[Path], taps: Taps, listener: Listener) -> None:
    """Calls a listener with the values in the files, as taps inside the graph would."""
    found = []
    for file in files:
        match = _FILE.match(file.name)
        if match is not None:
            found.append((int(match[4]), taps.templates[int(match[1])], int(match[2]), match[3] == GRADIENT, file))
    calls: defaultdict[str, list[int]] = defaultdict(list)
    times: Counter[tuple[int, int, bool]] = Counter()
    for _, template, slot, is_gradient, file in sorted(found, key=lambda one: one[0]):
        count = times[template.number, slot, is_gradient]
        times[template.number, slot, is_gradient] += 1
        known = calls[template.title]
        array = _values(file, template, slot)
        if is_gradient:
            listener.gradient(known[-1 - count] if count < len(known) else -1, template, slot, array)
            continue
        if count == len(known):
            known.append(listener.enter(template.title))
        listener.see(known[count], template, slot, array)


def _values(file: Path, template: CallTemplate, slot: int) -> Any:
    """The values of a file. The file has float32 for bfloat16; this converts it back, exactly."""
    row = template.slots[slot].row
    array = np.load(file, allow_pickle=False)
    wanted = None if row is None else row.numpy_dtype
    return array if wanted is None or array.dtype == wanted else array.astype(wanted)
