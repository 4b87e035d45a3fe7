"""Translates the monitor configuration of mindstudio-probe: `TrainerMon` accepts the same files."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from msprobe.collect import notices
from msprobe.config.errors import ConfigError, Problem, list_allowed, show_found
from msprobe.config.read import read
from msprobe.watch.alarms.rules import without_any
from msprobe.watch.settings import WatchSettings
from msprobe.watch.settings import load as load_settings
from msprobe.watch.targets import GRAD, GRAD_LOCAL, INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, STATE, UPDATE, WEIGHT

OUTPUT_DIRECTORY = "MONITOR_OUTPUT_DIR"
DEFAULT_DIRECTORY = "./monitor_output"
OPS = {"norm": "norm", "min": "min", "max": "max", "mean": "mean", "zeros": "zero", "nans": "nan"}
_TEXT_OPS = ("shape", "dtype")
FORMATS = ("csv", "tensorboard", "api")
RULES = {"AnomalyTurbulence": "spike", "AnomalyNan": "nan"}
_SWITCHES = {
    "wg_distribution": (GRAD_LOCAL, GRAD),
    "mv_distribution": (STATE,),
    "param_distribution": (WEIGHT,),
    "ur_distribution": (UPDATE,),
}
_READ = {
    "targets", "all_xy", "xy_distribution", "forward_only", "backward_only", "ops", "start_step", "step_interval",
    "collect_times", "format", "ndigits", "step_count_per_record", "squash_name", "alert", "module_ranks", *_SWITCHES,
}  # fmt: skip
_WITHOUT_EFFECT = {
    "cc_distribution": "it measures collectives of Ascend",
    "mg_direction": "the direction of gradients is not compared with the momentum",
    "stack_info": "a PrecisionDebugger dump has the stacks",
    "print_struct": "the structure is in the database: msprobe watch export",
    "recording_l2_features": "attention and router features are not computed",
    "l2_targets": "attention and router features are not computed",
    "sa_order": "attention and router features are not computed",
    "monitor_mbs_grad": "gradients are those of the complete step",
    "append_output": "each run has its own directory",
    "dynamic_on": "the file is read once",
    "eps": "zeros are counted exactly",
}


@dataclass(frozen=True)
class TrainerSettings:
    """The settings in a file of mindstudio-probe: those of the monitor, and how csv files are written."""

    watch: WatchSettings
    ops: tuple[str, ...]
    form: str
    ndigits: int
    steps_a_file: int
    squash_name: bool
    modules: Optional[tuple[str, ...]]


def load(path: str, rank: Optional[int]) -> TrainerSettings:
    """Raises ConfigError with every problem. Logs each key without effect once."""
    source, value = read(path)
    if not isinstance(value, Mapping):
        raise ConfigError(source, [Problem("file", show_found(value), "expected: an object with keys")])
    given = dict(value)
    problems = list(_problems(given))
    if problems:
        raise ConfigError(source, problems)
    for key in given:
        if key not in _READ:
            why = _WITHOUT_EFFECT.get(key, "msprobe does not know this key")
            notices.warn_once(f"the key {key} of {source} has no effect: {why}.")
    ops = [op for op in given.get("ops", []) if op in OPS] or ["norm"]
    form = given.get("format", "csv")
    config: dict[str, Any] = {
        "dump_path": str(_directory(rank)),
        "targets": _targets(given) or [WEIGHT],
        "statistics": [OPS[op] for op in ops],
        "start": given.get("start_step", 0),
        "every": given.get("step_interval", 1),
        "times": given.get("collect_times") or None,
        "ranks": given.get("module_ranks", []),
        "alarms": _alarms(given.get("alert", {})),
        "writers": ["tensorboard"] if form == "tensorboard" else [],
    }
    modules = given.get("targets") or {}
    return TrainerSettings(
        load_settings(config),
        (*ops, *_TEXT_OPS),
        form,
        given.get("ndigits") or 6,
        given.get("step_count_per_record", 1),
        given.get("squash_name", False) is True,
        None if given.get("all_xy") or not modules else tuple(modules),
    )


def count_from(settings: TrainerSettings, first: int) -> TrainerSettings:
    """The settings of a run that goes on at step `first`: collect_times counts the steps of this process."""
    watch = settings.watch
    passed = max(0, -(-(first - watch.start) // watch.every))
    return replace(settings, watch=replace(watch, start=watch.start + passed * watch.every))


def _problems(given: Mapping[str, Any]) -> Any:
    whole = {"start_step": 0, "step_interval": 1, "collect_times": 0, "ndigits": 1, "step_count_per_record": 1}
    for key, least in whole.items():
        if key in given and (type(given[key]) is not int or given[key] < least):
            yield Problem(key, show_found(given[key]), f"expected: an integer of at least {least}")
    kinds: dict[str, tuple[type, str]] = {
        "targets": (dict, "an object"),
        "ops": (list, "a list"),
        "alert": (dict, "an object"),
    }
    for key, (kind, name) in kinds.items():
        if key in given and not isinstance(given[key], kind):
            yield Problem(key, show_found(given[key]), f"expected: {name}")
    if given.get("format", "csv") not in FORMATS:
        yield Problem("format", show_found(given["format"]), list_allowed(FORMATS))
    alert = given.get("alert", {})
    for rule in alert.get("rules", []) if isinstance(alert, dict) else []:
        wanted = rule.get("rule_name") if isinstance(rule, dict) else rule
        if wanted not in RULES:
            yield Problem("alert.rules", show_found(wanted), list_allowed(RULES))


def _targets(given: Mapping[str, Any]) -> list[str]:
    kinds = [kind for key, wanted in _SWITCHES.items() if given.get(key) for kind in wanted]
    if given.get("xy_distribution"):
        kinds += [] if given.get("backward_only") else [INPUT, OUTPUT]
        kinds += [] if given.get("forward_only") else [INPUT_GRAD, OUTPUT_GRAD]
    return kinds


def _alarms(alert: Mapping[str, Any]) -> dict[str, Any]:
    """Only the rules that the file names; turbulence uses our own rule `spike`."""
    alarms: dict[str, Any] = dict(without_any())
    for rule in alert.get("rules", []):
        threshold = (rule.get("args") or {}).get("threshold")
        name = RULES[rule["rule_name"]]
        alarms[name] = 1 + float(threshold) if name == "spike" and threshold else True
    return alarms


def _directory(rank: Optional[int]) -> Path:
    base = Path(os.environ.get(OUTPUT_DIRECTORY) or DEFAULT_DIRECTORY)
    return base / f"{time.strftime('%b%d_%H-%M-%S')}-rank{rank or 0}-{uuid.uuid4().hex[:8]}"
