"""`msprobe replay MODULE --run SCRIPT`: a dump has no code of modules, so the script runs as far as the call.

There the module gets the recorded inputs and parameters, if the dump has their tensors, and is repeated alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.analyze.repeat_record import Part, Repetition, ulps
from msprobe.check.core.examine import loader
from msprobe.config.directions import REFUSED, Directions, Graft, Repeat
from msprobe.dump.errors import DumpError
from msprobe.dump.names import BACKWARD, parse_name
from msprobe.dump.reader import RankDump, items, open_dump
from msprobe.rerun.launch import Script, run_script


def repeat_module(
    script: Script,
    rank: RankDump,
    name: str,
    times: int,
    directory: Path,
    golden: Optional[tuple[RankDump, str]] = None,
) -> Repetition:
    """Raises DumpError if the script fails or does not make the call."""
    if parse_name(name).direction == BACKWARD and golden is not None:
        raise DumpError(f"{name} is a backward: --golden works with the forward of a module")
    step = rank.step or 0
    report, results = directory / "report.json", directory / "results"
    results.mkdir(mode=0o750)
    # MindSpore cannot restore the state of an operator that draws numbers: the APIs inside the Cell show that it does.
    level = "mix" if rank.head.get("framework") == "mindspore" else "L0"
    settings = {"task": "statistics", "level": level, "dump_path": str(directory / "dump"), "step": [step]}
    config = directory / "config.json"
    config.write_text(json.dumps({**settings, "statistics": {"summary_mode": "md5"}}), encoding="utf-8")
    order = Repeat(name, step, rank.rank, times, str(report), str(results))
    directions = Directions(str(config), step, order, grafts=tuple(_recorded_inputs(rank, name, step)), whole=False)
    code = run_script(script, directions, directory, dict(os.environ))
    refusal = directory / REFUSED
    if refusal.is_file():
        raise DumpError(refusal.read_text(encoding="utf-8"))
    if not report.is_file():
        ended = f"ended with exit code {code}" if code else "ended"
        longer = _longer_name(directory / "dump", name)
        remedy = (
            f"the script calls it as {longer}, from an outer model: collect the dump with start() of that outer model"
            if longer
            else "give the script that made the dump, without a PrecisionDebugger of its own"
        )
        raise DumpError(f"{script} {ended} and did not call {name} in step {step}: {remedy}")
    found = json.loads(report.read_text(encoding="utf-8"))
    if "results" not in found:
        raise DumpError(f"{name} cannot be repeated: it draws random numbers whose state cannot be restored")
    kept = found.get("results_kept") or []
    recorded, others = _recorded(rank, name), _recorded(*golden) if golden is not None else {}
    parts = [_part(results, number, str(dtype), recorded, others) for number, dtype in enumerate(kept)]
    return Repetition(times, int(found["results"]), "the device of the script", tuple(parts), found.get("threads"))


def _longer_name(dump: Path, name: str) -> str:
    """The name of the same module, if the run has found it below a model that is around the one of the dump."""
    prefix, _, rest = name.partition(".")
    try:
        found = [one for rank in open_dump(dump).ranks for one in rank.records]
    except DumpError:
        return ""
    return next((one for one in found if one.startswith(f"{prefix}.") and one.endswith(f".{rest}")), "")


def _recorded_inputs(rank: RankDump, name: str, step: int) -> Iterator[Graft]:
    """What gives the module the recorded inputs and parameters."""
    for what, start in (("input", "input"), ("parameters", "parameters.")):
        found = [(slot, item) for slot, item in items(rank.records[name]) if slot.startswith(start) and _has_file(item)]
        every = [item for slot, item in items(rank.records[name]) if slot.startswith(start) and _is_tensor(item)]
        if found and len(found) == len(every):
            files = tuple(str(rank.tensor_path(str(item["data_name"])).resolve()) for _, item in found)
            names = tuple(slot.partition(".")[2] for slot, _ in found) if what == "parameters" else ()
            yield Graft(name, step, rank.rank, what, files, names)


def _is_tensor(item: Any) -> bool:
    return isinstance(item, dict) and "dtype" in item


def _has_file(item: Any) -> bool:
    return _is_tensor(item) and isinstance(item.get("data_name"), str)


def _recorded(rank: RankDump, name: str) -> dict[str, Any]:
    """The saved results of a call, by slot."""
    load = loader(rank)
    found = {
        slot: load(item) for slot, item in items(rank.records[name]) if slot.startswith("output") and _has_file(item)
    }
    return {slot: value for slot, value in found.items() if value is not None}


def _part(results: Path, number: int, dtype: str, recorded: dict[str, Any], others: dict[str, Any]) -> Part:
    slot = f"output.{number}"
    own, wide = (np.load(results / f"{title}{number}.npy", allow_pickle=False) for title in ("own", "wide"))

    def distance(value: Any) -> Optional[float]:
        return None if value is None else ulps(np.asarray(value, dtype=np.float64), wide, dtype)

    return Part(slot, dtype, distance(own), distance(recorded.get(slot)), distance(others.get(slot)))
