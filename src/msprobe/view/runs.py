"""What is known of the runs: command, host, versions, seeds, commit. One line for each fact, with what differs.

The texts come from run.json, which is not trusted: they are shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msprobe.view.call_details import shown

_VERSIONS = ("torch", "mindspore", "python", "numpy", "msprobe")
_SEEDS = ("torch_seed", "mindspore_seed", "numpy_seed")
_LEFT_OUT = (
    "command", "hostname", "directory", "git_commit", "device", "time", "framework", "groups", "parallel",
    "first_batch", "random_state", "environment.RANK", "environment.LOCAL_RANK", "environment.MASTER_PORT",
    *_VERSIONS, *_SEEDS,
)  # fmt: skip
"""Shown by name, or part of something else."""
MOST = 12


def describe_runs(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each fact its key, its text in each run and whether the texts differ. Facts that no run has are left out;
    so are settings that do not differ."""
    if not any(runs):
        return []
    facts = [_facts(run) for run in runs]
    found = [_described(key, [one[key] for one in facts]) for key in facts[0] if any(one[key] for one in facts)]
    if len(runs) == 2 and all(runs):
        sides = [_flat({key: one for key, one in run.items() if key != "made"}) for run in runs]
        keys = [key for key in dict.fromkeys([*sides[0], *sides[1]]) if key not in _LEFT_OUT]
        others = [_described(key, [side.get(key, "–") for side in sides]) for key in keys]
        found += [one for one in others if one["differs"]][:MOST]
    return found


def _described(key: str, texts: list[str]) -> dict[str, Any]:
    """The time always differs and says nothing."""
    return {"key": key, "texts": texts, "differs": key != "time" and len(set(texts)) > 1}


def _facts(run: Mapping[str, Any]) -> dict[str, str]:
    versions = (f"{name} {_text(run[name])}" for name in _VERSIONS if run.get(name))
    seeds = (f"{name.removesuffix('_seed')} {_text(run[name])}" for name in _SEEDS if run.get(name) is not None)
    return {
        "command": _command(run.get("command")),
        "host": _text(run.get("hostname")),
        "device": _text(run.get("device")),
        "versions": ", ".join(versions),
        "seeds": ", ".join(seeds),
        "commit": _text(run.get("git_commit"))[:12],
        "time": _text(run.get("time"))[:19].replace("T", " "),
    }


def _command(value: Any) -> str:
    """The interpreter without its directory: it is the same kind of program wherever it is."""
    if not isinstance(value, list) or not value:
        return _text(value)
    return " ".join([PurePosixPath(_text(value[0])).name, *map(_text, value[1:])])


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) <= 8:
        return ", ".join(map(_text, value))
    return "" if value is None else str(shown(value))


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, one in value.items():
        name = f"{before}{key}"[:200]
        if isinstance(one, Mapping) and not before:
            found.update(_flat(one, f"{name}."))
        else:
            found[name] = _text(one)
    return found


def directory_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The directories in which the runs were started: paths in them are shown without them."""
    return [text for run in runs if (text := _text(run.get("directory")))]
