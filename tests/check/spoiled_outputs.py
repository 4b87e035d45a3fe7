"""How many spoiled results run_ut lets pass: each API of the PyTorch support list, each of its saved outputs.

python tests/check/spoiled_outputs.py [EVERY]     prints the counts and what passes; EVERY takes one call in so many

Each output is spoiled in four ways, one at a time: a tenth of the elements, one element, the sign, a shift by one
place. What a way does not change (the sign of zero, the shift of equal elements) is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from msprobe.check.core.arguments import flat_records
from msprobe.check.core.examine import Examiner
from msprobe.check.core.plan import make_plan
from msprobe.dump.reader import RankDump, open_dump

Array = Any


def _tenth(flat: Array) -> Array:
    flat[:: max(1, min(10, flat.size))] = _other(flat[:: max(1, min(10, flat.size))])
    return flat


def _one(flat: Array) -> Array:
    flat[flat.size // 2] = _other(flat[flat.size // 2 : flat.size // 2 + 1])[0]
    return flat


def _sign(flat: Array) -> Array:
    return ~flat if flat.dtype == bool else -flat


def _shift(flat: Array) -> Array:
    return np.roll(flat, 1)


def _other(values: Array) -> Array:
    """Other values of the same kind: half as much again and one more."""
    return ~values if values.dtype == bool else (values + values / 2 + 1).astype(values.dtype)


WAYS: dict[str, Callable[[Array], Array]] = {"tenth": _tenth, "one": _one, "sign": _sign, "shift": _shift}


class Passed(NamedTuple):
    call: str
    slot: str
    way: str
    forward: str
    backward: str
    message: str


class Spoiled(RankDump):
    """The dump with one of its tensors spoiled."""

    def spoil(self, data_name: str, array: Array) -> None:
        object.__setattr__(self, "_spoiled", (data_name, array))

    def tensor(self, data_name: str, mmap: bool = True) -> Any:
        name, array = self.__dict__.get("_spoiled", ("", None))
        return array.copy() if name == data_name else super().tensor(data_name, mmap)


def collect(directory: Path) -> Path:
    config = directory / "config.json"
    dump = directory / "dump"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(dump), "step": [0]}))
    script = Path(__file__).with_name("torch_survey.py")
    subprocess.run([sys.executable, str(script), str(config)], check=True, capture_output=True)
    return open_dump(dump).ranks[0].path


def spoil(rank: Path, every: int = 1) -> Iterator[tuple[str, list[Passed]]]:
    """For each spoiled output, the way it was spoiled and the check that passed it, if it did."""
    dump, examiner = Spoiled(rank), Examiner()
    for task in make_plan(dump.records).tasks[::every]:
        for direction, record in (("forward", task.forward), ("backward", task.backward)):
            for number, item in enumerate(flat_records((record or {}).get("output"), nulls=True)):
                if not isinstance(item, dict) or "data_name" not in item:
                    continue
                whole = RankDump.tensor(dump, item["data_name"], mmap=False)
                for way, change in WAYS.items():
                    array = _changed(whole, change)
                    if array is None:
                        continue
                    dump.spoil(item["data_name"], array)
                    outcome = examiner.examine(task.call, task.title, task.forward, task.backward, dump)
                    status = outcome.forward if direction == "forward" else outcome.backward
                    slot = f"{direction}.output.{number}"
                    failed = status in ("error", "warning") or (status == "SKIP" and outcome.message)
                    found = Passed(task.call, slot, way, outcome.forward, outcome.backward, outcome.message)
                    yield way if status != "SKIP" else "not judged", [] if failed else [found]
                dump.spoil("", None)


def _changed(whole: Array, change: Callable[[Array], Array]) -> Array:
    if not whole.size or whole.dtype.kind not in "biufc":
        return None
    array = change(whole.reshape(-1).copy()).reshape(whole.shape)
    with np.errstate(all="ignore"):
        same = np.array_equal(array, whole, equal_nan=whole.dtype.kind in "fc")
    return None if same else array


def main() -> None:
    warnings.simplefilter("ignore")
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    counts: Counter[str] = Counter()
    passed: list[Passed] = []
    with tempfile.TemporaryDirectory() as directory, np.errstate(all="ignore"):
        for way, found in spoil(collect(Path(directory)), every):
            counts[way] += 1
            passed += found
    judged = sum(count for way, count in counts.items() if way != "not judged")
    for one in passed:
        print(*one)
    print(f"{judged} spoiled outputs judged, {len(passed)} passed; {counts['not judged']} not judged, with a reason")
    print(dict(counts))


if __name__ == "__main__":
    main()
