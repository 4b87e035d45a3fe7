"""data_dump.json, read and checked completely before the training starts. One error lists every problem.

Two versions of the format are accepted: MindSpore's current one and that of r1.5 (`op_debug_mode` missing or 0 to
3; no `saved_data`; for the asynchronous dump no `e2e_dump_settings`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from msprobe.config.errors import ConfigError, Problem, list_allowed, show_found, suggest
from msprobe.config.kinds import Choice, Flag, Integer, Kind, Names, accept_if, is_integer, parse_words, refuse
from msprobe.config.read import Members, read

COMMON, E2E = "common_dump_settings", "e2e_dump_settings"
OVERFLOW, EXCEPTION = (1, 2, 3), 4
CATEGORIES = {
    "max": "Max Value",
    "min": "Min Value",
    "avg": "Avg Value",
    "count": "Count",
    "negative zero count": "Negative Zero Count",
    "positive zero count": "Positive Zero Count",
    "nan count": "NaN Count",
    "negative inf count": "Negative Inf Count",
    "positive inf count": "Positive Inf Count",
    "zero count": "Zero Count",
    "md5": "MD5",
    "l2norm": "L2Norm Value",
}
ON_DEVICE = ("max", "min", "avg", "l2norm")
_ITERATIONS = re.compile(r"\s*\d{1,10}\s*(-\s*\d{1,10}\s*)?(\|\s*\d{1,10}\s*(-\s*\d{1,10}\s*)?)*")
_NET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
_PLAIN = re.compile(r"[A-Za-z0-9_/-]*")
_ONLY_PLAIN = "MindSpore allows only letters, digits, -, _ and / in this path; choose another path"


@dataclass(frozen=True)
class _Net:
    expected = "allowed: letters, digits, _ and -, not starting with - (it becomes a directory name)"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        valid = isinstance(value, str) and _NET.fullmatch(value) is not None
        return accept_if(valid, value, path, problems, self.expected)


@dataclass(frozen=True)
class _Iterations:
    expected = 'allowed: "all", or numbers and ranges such as "0 | 5-8 | 100-120"'

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if value == "all":
            return "all"
        if isinstance(value, str) and _ITERATIONS.fullmatch(value):
            spans = [[int(end) for end in part.split("-")] for part in value.split("|")]
            if all(span[0] <= span[-1] for span in spans):
                return "|".join("-".join(map(str, span)) for span in spans)
        refuse(problems, path, value, self.expected, f'"{value}"' if is_integer(value) else "")
        return None


@dataclass(frozen=True)
class _Path:
    """Empty means $MS_DIAGNOSTIC_DATA_PATH/debug_dump."""

    expected = "allowed: an absolute path, or an empty string if $MS_DIAGNOSTIC_DATA_PATH is set"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if not isinstance(value, str) or "\0" in value or not value.isprintable():
            refuse(problems, path, value, self.expected)
        elif value and not Path(value).is_absolute():
            refuse(problems, path, value, self.expected, f'"{Path.cwd() / value}"')
        elif not _PLAIN.fullmatch(value):
            refuse(problems, path, value, _ONLY_PLAIN)
        else:
            return value
        return None


@dataclass(frozen=True)
class _Devices:
    expected = "allowed: a list of device numbers, such as [0, 1]"

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, list) and value and all(is_integer(item) and 0 <= item < 1 << 20 for item in value):
            return tuple(value)
        refuse(problems, path, value, self.expected)
        return None


@dataclass(frozen=True)
class _Categories:
    expected = "allowed: a list of some of " + ", ".join(f'"{word}"' for word in CATEGORIES)

    def parse(self, value: object, path: str, problems: list[Problem]) -> object:
        if isinstance(value, list) and value:
            return parse_words(tuple(CATEGORIES), value, path, problems)
        refuse(problems, path, value, self.expected)
        return None


_KINDS: dict[str, dict[str, tuple[Kind, Any]]] = {
    COMMON: {
        "op_debug_mode": (Integer(0, 4), 0),
        "dump_mode": (Integer(0, 2), 0),
        "path": (_Path(), ""),
        "net_name": (_Net(), "Net"),
        "iteration": (_Iterations(), "all"),
        "saved_data": (Choice(("tensor", "statistic", "full")), "tensor"),
        "input_output": (Integer(0, 2), 0),
        "kernels": (Names(), ()),
        "support_device": (_Devices(), tuple(range(8))),
        "statistic_category": (_Categories(), ("max", "min", "l2norm")),
        "overflow_number": (Integer(0), 0),
        "initial_iteration": (Integer(0), 0),
        "file_format": (Choice(("npy", "bin")), "npy"),
    },
    E2E: {
        "enable": (Flag(), False),
        "trans_flag": (Flag(), True),
        "stat_calc_mode": (Choice(("host", "device")), "host"),
        "device_stat_precision_mode": (Choice(("high", "low")), "high"),
        "sample_mode": (Integer(0, 1), 0),
        "sample_num": (Integer(1), 100),
        "save_kernel_args": (Flag(), False),
    },
}


@dataclass(frozen=True)
class DumpSettings:
    """A complete data_dump.json. `path` is absolute, `iteration` has no blanks, `given` lists the keys in the file."""

    op_debug_mode: int
    dump_mode: int
    path: str
    net_name: str
    iteration: str
    saved_data: str
    input_output: int
    kernels: tuple[str, ...]
    support_device: tuple[int, ...]
    statistic_category: tuple[str, ...]
    overflow_number: int
    initial_iteration: int
    file_format: str
    enable: bool
    trans_flag: bool
    stat_calc_mode: str
    device_stat_precision_mode: str
    sample_mode: int
    sample_num: int
    save_kernel_args: bool
    given: tuple[str, ...]

    @property
    def statistics(self) -> tuple[str, ...]:
        """The categories to write; none if only tensors are saved."""
        return () if self.saved_data == "tensor" else self.statistic_category

    @property
    def keeps_tensors(self) -> bool:
        return self.saved_data != "statistic"


def load_settings(path: Union[str, os.PathLike[str]]) -> DumpSettings:
    """The checked settings of a file. Raises ConfigError with every problem in it."""
    source, value = read(path)
    return parse_settings(value, source)


def parse_settings(value: object, source: str, environment: Optional[Mapping[str, str]] = None) -> DumpSettings:
    environment = os.environ if environment is None else environment
    problems: list[Problem] = []
    values: dict[str, Any] = {key: default for kinds in _KINDS.values() for key, (_, default) in kinds.items()}
    given: list[str] = []
    if not isinstance(value, dict):
        raise ConfigError(source, [Problem("file", show_found(value), f"allowed: an object with {COMMON}")])
    _report_unknown("", value, tuple(_KINDS), problems)
    if COMMON not in value:
        problems.append(Problem(COMMON, "this section is missing", "add it, at least with net_name and path"))
    for section, kinds in _KINDS.items():
        members = value.get(section, {})
        if not isinstance(members, dict):
            problems.append(Problem(section, show_found(members), "allowed: an object"))
            continue
        _report_unknown(section + ".", members, tuple(kinds), problems)
        for key in kinds.keys() & members.keys():
            parsed = _read(kinds[key][0], members[key], f"{section}.{key}", problems)
            values[key] = values[key] if parsed is None else parsed
            given.append(key)
    values["path"] = _directory(values["path"], environment, problems)
    settings = DumpSettings(**values, given=tuple(sorted(given)))
    refused = any(problem.path.startswith(f"{COMMON}.kernels") for problem in problems)
    problems += _broken_rules(settings, has_kernels=bool(settings.kernels) or refused)
    if problems:
        raise ConfigError(source, problems)
    return settings


def _read(kind: Kind, value: object, path: str, problems: list[Problem]) -> object:
    if isinstance(kind, Names) and value == []:
        return ()
    return kind.parse(value, path, problems)


def _report_unknown(prefix: str, members: dict[str, object], known: tuple[str, ...], problems: list[Problem]) -> None:
    for key in members:
        if key not in known:
            problems.append(Problem(prefix + key, "unknown key", list_allowed(known), suggest(key, known)))
    for key in getattr(members, "repeated", ()) if isinstance(members, Members) else ():
        problems.append(Problem(prefix + key, "found more than once", "keep only the one you want"))


def _directory(path: str, environment: Mapping[str, str], problems: list[Problem]) -> str:
    if path:
        return path
    base = environment.get("MS_DIAGNOSTIC_DATA_PATH", "")
    if not base or not Path(base).is_absolute():
        if not any(problem.path in (COMMON, f"{COMMON}.path") for problem in problems):
            what = "it is empty and MS_DIAGNOSTIC_DATA_PATH is not an absolute path"
            problems.append(Problem(f"{COMMON}.path", what, "set one of them"))
        return ""
    if not _PLAIN.fullmatch(base):
        problems.append(Problem("MS_DIAGNOSTIC_DATA_PATH", show_found(base), _ONLY_PLAIN))
    return str(Path(base) / "debug_dump")


def _broken_rules(one: DumpSettings, has_kernels: bool) -> list[Problem]:
    """Combinations of two keys that are not allowed. Each problem names both keys."""
    problems: list[Problem] = []

    def rule(broken: bool, key: str, other: str, expected: str) -> None:
        if broken:
            both = [f"{name} is {getattr(one, name)!r}" for name in (key, other)]
            problems.append(Problem(f"{key} with {other}", " and ".join(both), expected))

    mode = one.op_debug_mode
    only_all = f"op_debug_mode {mode} needs all iterations: leave iteration out, or use op_debug_mode 0 or 3"
    rule(mode == EXCEPTION and one.iteration != "all", "iteration", "op_debug_mode", only_all)
    only_zero = "statistics need op_debug_mode 0; the other modes save only tensors"
    rule(mode != 0 and one.saved_data != "tensor", "saved_data", "op_debug_mode", only_zero)
    overflow = mode in OVERFLOW
    both_sides = "overflow mode saves inputs and outputs: set input_output to 0"
    rule(overflow and one.input_output != 0, "input_output", "op_debug_mode", both_sides)
    rule(overflow and one.stat_calc_mode != "host", "stat_calc_mode", "op_debug_mode", 'overflow needs "host"')
    inputs = "only the inputs of the operator that raises can be saved: set input_output to 1 or leave it out"
    outputs_too = mode == EXCEPTION and "input_output" in one.given and one.input_output != 1
    rule(outputs_too, "input_output", "op_debug_mode", inputs)
    rule(mode != 0 and one.sample_mode != 0, "sample_mode", "op_debug_mode", "sampling needs op_debug_mode 0")
    device = one.stat_calc_mode == "device" and bool(one.statistics) and not set(one.statistics) <= set(ON_DEVICE)
    only_host = f"the device computes only {', '.join(ON_DEVICE)}: choose those, or stat_calc_mode host"
    rule(device, "statistic_category", "stat_calc_mode", only_host)
    rule(one.save_kernel_args and not one.enable, "save_kernel_args", "enable", "save_kernel_args needs enable true")
    nothing = "dump_mode 1 saves the operators in kernels: list some, or use dump_mode 0"
    rule(one.dump_mode == 1 and not has_kernels, "kernels", "dump_mode", nothing)
    return problems
