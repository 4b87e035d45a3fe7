"""How many spoiled results run_ut lets pass: each API of a support list, each of its saved outputs.

python tests/check/spoiled_outputs.py [pytorch|mindspore] [EVERY] [FIRST]
    prints the counts and what passes; EVERY takes one call in so many, from the call number FIRST on

Each output is spoiled in four ways, one at a time: a tenth of the elements, one element, the sign, a shift by one
place. What a way does not change (the sign of zero, the shift of equal elements) is not counted.
"""

from __future__ import annotations

import copy
import functools
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
from msprobe.check.core.framework import Call
from msprobe.check.core.plan import Task, make_plan
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


class Remembered:
    """A call whose runs are made once: what the dump has of its outputs does not change them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.run, self.golden, self.moved = (functools.cache(one) for one in (call.run, call.golden, call.moved))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class RememberingExaminer(Examiner):
    """Remembers one call, with the tensors that it had when it was made: those without a fault."""

    def __init__(self, framework: str) -> None:
        super().__init__(framework=framework)
        self.framework = copy.copy(self.framework)
        self._make, self._made = self.framework.call, ("", None)
        self.framework.call = self._remember  # type: ignore[method-assign]

    def _remember(self, title: str, name: str, *records: Any) -> Any:
        if self._made[0] != name:
            self._made = (name, Remembered(self._make(title, name, *records)))  # type: ignore[assignment]
        return self._made[1]


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


SURVEYS = {"pytorch": ("torch_survey.py",), "mindspore": ("ms_survey.py", "collect")}


def collect(directory: Path, framework: str = "pytorch") -> Path:
    config = directory / "config.json"
    dump = directory / "dump"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(dump), "step": [0]}))
    script, *words = SURVEYS[framework]
    command = [sys.executable, str(Path(__file__).with_name(script)), *words, str(config)]
    subprocess.run(command, check=True, capture_output=True)
    return open_dump(dump).ranks[0].path


def examine(rank: Path, first: int, every: int) -> Iterator[dict[str, Any]]:
    """Each call, by its number: what is found without a fault, the ways in which it was spoiled, and what passed."""
    dump = Spoiled(rank)
    examiner = RememberingExaminer(dump.head["framework"])
    tasks = make_plan(dump.records).tasks
    for number in range(first, len(tasks), every):
        task = tasks[number]
        yield {"number": number, "call": task.call}  # first: if it ends this process, it is known which call did
        outcome = examiner.examine(task.call, task.title, task.forward, task.backward, dump)
        found = {outcome.forward, outcome.backward} & {"error", "warning"}
        spoiled = list(_spoil(dump, examiner, task))
        yield {
            "number": number,
            "false": [task.call, outcome.forward, outcome.backward, outcome.message] if found else None,
            "ways": Counter(way for way, _ in spoiled),
            "passed": [one for _, passed in spoiled for one in passed],
        }


def _spoil(dump: Spoiled, examiner: Examiner, task: Task) -> Iterator[tuple[str, list[Passed]]]:
    """For each spoiled output, the way it was spoiled and the check that passed it, if it did."""
    for direction, record in (("forward", task.forward), ("backward", task.backward)):
        for number, item in enumerate(flat_records((record or {}).get("output"), nulls=True)):
            if not isinstance(item, dict) or "data_name" not in item:
                continue
            complete = RankDump.tensor(dump, item["data_name"], mmap=False)
            for way, change in WAYS.items():
                array = _changed(complete, change)
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


def examine_all(rank: Path, every: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The same in a process of its own, and in a new one after a call that ended it: kernels of a CPU may crash."""
    while True:
        command = [sys.executable, __file__, "--rank", str(rank), str(first), str(every)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            begun: dict[str, Any] = {}
            for line in process.stdout:
                if not line.startswith('{"number"'):
                    continue
                result = json.loads(line)
                if "call" in result:
                    begun = result
                else:
                    yield result
        if not process.returncode:
            return
        yield {"crashed": begun["call"]}
        first = begun["number"] + every


def _changed(whole: Array, change: Callable[[Array], Array]) -> Array:
    if not whole.size or whole.dtype.kind not in "biufc":
        return None
    array = change(whole.reshape(-1).copy()).reshape(whole.shape)
    with np.errstate(all="ignore"):
        same = np.array_equal(array, whole, equal_nan=whole.dtype.kind in "fc")
    return None if same else array


def main() -> None:
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--rank"]:
        with np.errstate(all="ignore"):
            for result in examine(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])):
                print(json.dumps(result), flush=True)
        return
    framework = next((word for word in sys.argv[1:] if word in SURVEYS), "pytorch")
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    every, first = numbers + [1, 0][len(numbers) :]
    counts: Counter[str] = Counter()
    passed, false, crashed, calls = 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        for result in examine_all(collect(Path(directory), framework), every, first):
            calls += 1
            if "crashed" in result:
                crashed += 1
                print("ends its process:", result["crashed"])
                continue
            counts.update(result["ways"])
            passed += len(result["passed"])
            for one in result["passed"]:
                print("passed:", *one, flush=True)
            if result["false"]:
                false += 1
                print("finding without a fault:", *result["false"], flush=True)
    judged = sum(count for way, count in counts.items() if way != "not judged")
    print(f"{judged} spoiled outputs judged, {passed} passed; {counts['not judged']} not judged, with a reason")
    print(dict(counts))
    print(f"{calls} calls; unspoiled, {false} have a finding; {crashed} end their process")


if __name__ == "__main__":
    main()
