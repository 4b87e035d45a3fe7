"""The graphs that raised: the text of each exception, and the inputs of the graph. op_debug_mode 4 needs them, because
MindSpore writes only what operators have read or returned, and nobody else sees an exception that the script catches.

The training writes them into the staging directory, and the worker reads them at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

PLACE = "raised"
_FILE = "raised.json"
_MOST = 16


@dataclass(frozen=True)
class Raised:
    """One exception. `inputs` are files, by the names of the inputs in the graph."""

    text: str
    inputs: dict[str, Path]


def prepare_place(staging: Path) -> Path:
    """The directory for `write_raised`. That it exists says that exceptions are seen."""
    place = staging / PLACE
    place.mkdir(mode=0o750, exist_ok=True)
    return place


def write_raised(place: Path, text: str, inputs: Iterable[tuple[str, npt.NDArray[Any]]]) -> None:
    number = len(list(place.iterdir()))
    if number >= _MOST:
        return
    directory = place / str(number)
    directory.mkdir(mode=0o750)
    files: dict[str, str] = {}
    for name, array in inputs:
        files[name] = f"{len(files)}.npy"
        np.save(directory / files[name], array, allow_pickle=False)
    (directory / _FILE).write_text(json.dumps({"text": text, "inputs": files}), encoding="utf-8")


def read_raised(staging: Path) -> Optional[list[Raised]]:
    """The exceptions in their order; None if nobody watched for them."""
    place = staging / PLACE
    if not place.is_dir():
        return None
    found = []
    for directory in sorted(place.iterdir(), key=lambda one: int(one.name)):
        if (directory / _FILE).is_file():  # the last thing that is written
            content = json.loads((directory / _FILE).read_text(encoding="utf-8"))
            found.append(Raised(content["text"], {name: directory / one for name, one in content["inputs"].items()}))
    return found
