"""Which device a dump is for, and what MindSpore itself dumps on Ascend.

Elsewhere msprobe asks MindSpore for tensors and makes the rest from them. On Ascend, MindSpore has what only the device
can do: asynchronous dump, statistics of the device, overflow and exceptions. Then it gets the settings as they are and
writes to the final place. This follows MindSpore's documents; it has not run on a device.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from msprobe.config.errors import ConfigError, Problem
from msprobe.graphdump.dumping.dump_settings import COMMON, E2E, DumpSettings
from msprobe.graphdump.dumping.saving import FILE_MODE, make_directory

ASCEND, GPU, CPU = "Ascend", "GPU", "CPU"
_NODES = ((ASCEND, "davinci[0-9]*"), (GPU, "nvidia[0-9]*"))
_COMMON = (
    "op_debug_mode",
    "dump_mode",
    "path",
    "net_name",
    "iteration",
    "saved_data",
    "input_output",
    "kernels",
    "support_device",
    "statistic_category",
    "overflow_number",
    "initial_iteration",
)
_E2E = ("enable", "trans_flag", "stat_calc_mode", "device_stat_precision_mode", "sample_mode", "sample_num")


def find_device(nodes: Path = Path("/dev")) -> str:
    """The kind of device of this machine, before a script has chosen one."""
    return next((kind for kind, pattern in _NODES if any(nodes.glob(pattern))), CPU)


def is_selected(settings: DumpSettings, rank: int, device: str) -> bool:
    """Whether this rank dumps. A CPU has no device numbers: there support_device has no effect."""
    return device == CPU or rank in settings.support_device


def is_for_framework(settings: DumpSettings, device: str) -> bool:
    """Whether the settings ask for what only MindSpore can do, on this device."""
    statistics_of_device = settings.stat_calc_mode == "device" and bool(settings.statistics)
    return device == ASCEND and (not settings.enable or settings.op_debug_mode != 0 or statistics_of_device)


def make_ascend_config(settings: DumpSettings) -> dict[str, Any]:
    """The data_dump.json for MindSpore on Ascend: the settings of the user, complete."""

    def plain(key: str) -> Any:
        value = getattr(settings, key)
        return list(value) if isinstance(value, tuple) else value

    common = {key: plain(key) for key in _COMMON}
    if "file_format" in settings.given:
        common["file_format"] = settings.file_format
    e2e = {key: plain(key) for key in _E2E}
    if settings.save_kernel_args:
        e2e["save_kernel_args"] = True
    return {COMMON: common, E2E: e2e}


def write_ascend_config(settings: DumpSettings, source: str, rank: int) -> Path:
    """Writes the configuration into the dump; returns its path, the value of MINDSPORE_DUMP_CONFIG."""
    root = Path(settings.path)
    file = root / f"kernel_kbyk_dump_{rank}.json"
    try:
        make_directory(root)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump(make_ascend_config(settings), stream, indent=4)
    except OSError as error:
        what = f"cannot write to {root} ({error.strerror or error})"
        raise ConfigError(source, [Problem(f"{COMMON}.path", what, "check the path and its permissions")]) from None
    return file
