"""The grammar of file names in graph-mode dumps. No other module parses them.

Tensor names have three forms: without a data type, with one, and the form that `convert` writes, with the shape in
place of the format. Raw files (.bin) have the shape and the data type. Names of asynchronous files have a stream id or
not. A name that is too long for a file system is replaced by a number; mapping.csv in the same directory has the
full name.
"""

from __future__ import annotations

import csv
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from msprobe.dump.untrusted.regular_files import open_text
from msprobe.graphdump.files.datatypes import find_type

LONGEST = 255
MAPPING = "mapping.csv"

_OPERATOR = r"(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d{1,20})(?:\.(?P<stream>\d{1,20}))?\.(?P<time>\d{1,20})"
_ASYNC = re.compile(_OPERATOR)
_TENSOR = re.compile(_OPERATOR + r"\.(?P<io>input|output)\.(?P<slot>\d{1,9})\.(?P<format>[^.]+)(?:\.(?P<dtype>[^.]+))?")
_SHAPE = re.compile(r"(\d{1,18}(x\d{1,18}){0,31}|scalar)")


@dataclass(frozen=True)
class OperatorName:
    """The part of a file name that identifies one execution of one operator.

    `name` is as in the file name, with `_` in place of `/` and other separators.
    """

    type: str
    name: str
    task: int
    stream: int
    timestamp: int


@dataclass(frozen=True)
class TensorName:
    """The parsed name of a tensor file. If the name has a shape in place of a format, `format` is empty."""

    operator: OperatorName
    io: str
    slot: int
    format: str
    dtype: str
    is_npy: bool
    shape: Optional[tuple[int, ...]] = None


def _operator(match: re.Match[str]) -> OperatorName:
    return OperatorName(match["type"], match["name"], int(match["task"]), int(match["stream"] or 0), int(match["time"]))


def parse_async(name: str) -> Optional[OperatorName]:
    """`{op_type}.{op_name}.{task}[.{stream}].{timestamp}`, or None."""
    match = _ASYNC.fullmatch(name)
    return _operator(match) if match else None


def parse_tensor(name: str) -> Optional[TensorName]:
    """`{operator}.{input|output}.{slot}.{format or shape}[.{dtype}].npy`, or a raw file: the same with a data type and
    .bin or no suffix. None for any other name."""
    is_npy = name.endswith(".npy")
    match = _TENSOR.fullmatch(name[: -len(".npy")] if name.endswith((".npy", ".bin")) else name)
    if match is None:
        return None
    dtype = match["dtype"] or ""
    if not is_npy and find_type(dtype) is None:
        return None
    place = (_operator(match), match["io"], int(match["slot"]))
    if _SHAPE.fullmatch(match["format"]):
        return TensorName(*place, "", dtype, is_npy, _shape(match["format"]))
    return TensorName(*place, match["format"], dtype, is_npy)


def _shape(token: str) -> tuple[int, ...]:
    return () if token == "scalar" else tuple(int(number) for number in token.split("x"))


def raw_name(name: TensorName, shape: tuple[int, ...], dtype: str) -> str:
    """The name of the raw file of this tensor."""
    one = name.operator
    stem = f"{one.type}.{one.name}.{one.task}.{one.stream}.{one.timestamp}.{name.io}.{name.slot}"
    return f"{stem}.{shape_token(shape)}.{name.dtype or dtype}.bin"


def parse_arguments(name: str) -> Optional[tuple[str, str]]:
    """The type and the name in `{op_type}.{op_name}.json`, the initialisation values of an operator, or None."""
    kind, _, rest = name.partition(".")
    return (kind, rest[: -len(".json")]) if kind and rest.endswith(".json") and len(rest) > len(".json") else None


def spell_for_file(full_name: str) -> str:
    """The full name of an operator in the form that file names use."""
    return re.sub(r"[./\\ ]", "_", full_name)


def shape_token(shape: tuple[int, ...]) -> str:
    """30x1024x17x17; `scalar` for a tensor without dimensions."""
    return "x".join(map(str, shape)) or "scalar"


def shorten(name: str) -> str:
    """A name of 32 digits for a name that is too long for a file system. The same name gives the same digits."""
    digits = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % 10**32
    return f"{digits:032d}" + Path(name).suffix


def read_mapping(directory: Path) -> dict[str, str]:
    """mapping.csv of a directory: name on disk to full name; empty without that file. Rows that cannot be read or have
    no valid name are skipped: those files keep their names."""
    result: dict[str, str] = {}
    try:
        with open_text(directory / MAPPING, directory) as file:
            for row in csv.reader(file):
                cells = [cell.strip() for cell in row]
                if len(cells) >= 2 and cells[0] and cells[1] and not {"/", "\0"} & set(cells[1]):
                    result[cells[0]] = cells[1]
    except (OSError, csv.Error):
        pass
    return result
