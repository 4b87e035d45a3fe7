"""The configuration that MindSpore itself gets.

On CPU, MindSpore refuses statistics and ignores overflow, exceptions, sampling and set_dump. So msprobe asks it for
plain tensors in a staging directory, and the worker makes the rest from them. Operator names in `kernels` are
widened to their scope and type: MindSpore renumbers operators when it runs, and the worker, which knows both
numberings, picks the right one.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from msprobe.config.errors import ConfigError, Problem
from msprobe.config.kinds import name_pattern
from msprobe.graphdump.dumping.devices import is_selected
from msprobe.graphdump.dumping.dump_settings import COMMON, E2E, EXCEPTION, OVERFLOW, DumpSettings
from msprobe.graphdump.dumping.saving import FILE_MODE, make_directory

STAGING = "msprobe_staging"
NO_KERNEL = "name-regex(^$)"  # matches no operator: only graphs and execution orders are written
_NUMBERED = re.compile(r"(?P<base>.+/.+-op)\d+")
_SPECIAL = re.compile(r"[.^$|()\[\]{}*+?\\]")  # re.escape also writes "\-", which MindSpore does not understand


def make_framework_config(settings: DumpSettings, staging: Path) -> dict[str, Any]:
    """The data_dump.json for MindSpore."""
    chosen = settings.dump_mode == 1
    everything = settings.op_debug_mode != 0
    return {
        COMMON: {
            "op_debug_mode": 0,
            "dump_mode": 1 if chosen else 0,
            "path": str(staging),
            "net_name": settings.net_name,
            "iteration": settings.iteration,
            "saved_data": "tensor",
            "input_output": 0 if everything else settings.input_output,
            "kernels": list(dict.fromkeys(map(_widen, settings.kernels))) if chosen else [],
            "support_device": list(settings.support_device),
            "initial_iteration": settings.initial_iteration,
        },
        E2E: {"enable": True, "trans_flag": settings.trans_flag},
    }


def _widen(name: str) -> str:
    if name_pattern(name) is not None:
        return name if name == NO_KERNEL else "name-regex(.+)"
    match = _NUMBERED.fullmatch(name)
    return f"name-regex({_SPECIAL.sub(_escape, match['base'])}.+)" if match else name


def _escape(special: re.Match[str]) -> str:
    return f"\\{special[0]}"


def choosing_entries(kernels: tuple[str, ...], full_name: str) -> list[str]:
    """The entries of `kernels` that select this operator: by name, by a regular expression, or by a part of its last
    segment."""
    return [entry for entry in kernels if _chooses(entry, full_name)]


def _chooses(entry: str, full_name: str) -> bool:
    pattern = name_pattern(entry)
    if pattern is not None:
        return re.match(pattern, full_name) is not None
    if "/" in entry:
        return entry == full_name
    return entry.lower() in full_name.rsplit("/", 1)[-1].lower()


def prepare(settings: DumpSettings, source: str, rank: int) -> tuple[Path, Path]:
    """Creates the staging directory of this rank with MindSpore's configuration in it; returns both paths.

    Raises ConfigError if the dump already exists or cannot be written."""
    root = Path(settings.path)
    taken = root / f"rank_{rank}" / settings.net_name
    staging = root / STAGING / f"{os.getpid()}"
    if taken.exists():
        raise ConfigError(
            source, [Problem(f"{COMMON}.path", f"{taken} exists already", "remove it or choose another path")]
        )
    try:
        make_directory(staging)
        config = staging / "data_dump.json"
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(make_framework_config(settings, staging), file)
    except OSError as error:
        what = f"cannot write to {root} ({error.strerror or error})"
        raise ConfigError(source, [Problem(f"{COMMON}.path", what, "check the path and its permissions")]) from None
    return staging, config


def set_initial_iteration(config: Path, step: int) -> None:
    """Writes the configuration again, with another first iteration. MindSpore must not have read it yet."""
    value = json.loads(config.read_text(encoding="utf-8"))
    value[COMMON]["initial_iteration"] = step
    config.write_text(json.dumps(value), encoding="utf-8")


def list_remarks(settings: DumpSettings, rank: int, device: str) -> list[str]:
    """Where msprobe does not follow the file literally. Each remark is logged once, before the run."""
    found = []
    listed = ", ".join(map(str, settings.support_device))
    if not is_selected(settings, rank, device):
        return [f"rank {rank} is not in support_device ({listed}): this rank dumps nothing."]
    if rank not in settings.support_device:
        found.append(f"support_device ({listed}) has no effect on a CPU: rank {rank} dumps too.")
    if not settings.enable:
        found.append("enable is not true: the dump is synchronous anyway on this device.")
    if settings.op_debug_mode in OVERFLOW and settings.op_debug_mode != 3:
        found.append("op_debug_mode 1 and 2 are overflow detections of Ascend; here both search for NaN and infinity.")
    if settings.stat_calc_mode == "device" and settings.statistics:
        found.append("stat_calc_mode device: statistics are computed on the host here.")
    if settings.kernels and settings.dump_mode != 1:
        found.append(f"kernels is ignored: it needs dump_mode 1, and dump_mode is {settings.dump_mode}.")
    if settings.overflow_number and settings.op_debug_mode not in OVERFLOW:
        found.append(f"overflow_number is ignored: it needs op_debug_mode 3, and that is {settings.op_debug_mode}.")
    if settings.op_debug_mode == EXCEPTION:
        found.append("op_debug_mode 4: nothing is written unless an operator raises.")
    return found
