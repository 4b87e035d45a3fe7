"""acl_config.json, the configuration of Ascend's own kernel dump: checked when the debugger is created."""

from __future__ import annotations

from pathlib import Path

from msprobe.config.errors import ConfigError, Problem, list_allowed, show_found, suggest
from msprobe.config.read import read

_CHOICES = {"dump_mode": ("output", "input", "all"), "dump_op_switch": ("on", "off")}
_KEYS = ("dump_list", "dump_path", "dump_mode", "dump_op_switch")


def check_acl_config(path: Path) -> None:
    """Raises ConfigError with every problem of the file."""
    source, value = read(path)
    dump = value.get("dump") if isinstance(value, dict) else None
    if not isinstance(dump, dict):
        raise ConfigError(source, [Problem("dump", "this section is missing", 'write {"dump": {"dump_path": "…"}}')])
    problems = [
        Problem(f"dump.{key}", "unknown key", list_allowed(_KEYS), suggest(key, _KEYS))
        for key in dump
        if key not in _KEYS
    ]
    for key, allowed in _CHOICES.items():
        if key in dump and dump[key] not in allowed:
            problems.append(Problem(f"dump.{key}", show_found(dump[key]), list_allowed(allowed)))
    if not isinstance(dump.get("dump_list", []), list):
        problems.append(Problem("dump.dump_list", show_found(dump["dump_list"]), "allowed: a list; leave it empty"))
    where = dump.get("dump_path")
    if not isinstance(where, str) or not where:
        problems.append(Problem("dump.dump_path", show_found(where), "give the directory for Ascend's files"))
    elif not Path(where).is_dir():
        problems.append(Problem("dump.dump_path", show_found(where), "this directory does not exist; create it first"))
    if problems:
        raise ConfigError(source, problems)
