"""Weights in files: safetensors (one file or sharded), `.pt` of torch.save, distributed checkpoints (DCP).

Nothing is unpickled. Safetensors are mapped, so a checkpoint may be larger than memory.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

import ml_dtypes
import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.layout import is_plain_file_name
from msprobe.rollout.pickles import PickledObject, read_pickle

Array = np.ndarray[Any, Any]
_MAX_HEADER = 100 << 20
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


_TORCH = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: read when it is needed."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_DTYPES.get(self.dtype, np.uint8)).itemsize


@dataclass
class Weights:
    """The tensors of a checkpoint by name. An engine's weights have one entry for each rank."""

    path: Path
    tensors: dict[str, Stored]
    tied: dict[str, str] = field(default_factory=dict)
    ranks: list[Weights] = field(default_factory=list)
    engine: str = ""


def open_weights(path: Path) -> Weights:
    """The checkpoint at a path: a file, or a directory. Raises DumpError with one sentence if there is none."""
    path = Path(path)
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise DumpError(f"{path} does not exist.")
    if (path / ".metadata").is_file():
        return _open_dcp(path)
    files = sorted(path.glob("*.safetensors"))
    ranks = [file for file in files if file.stem.startswith("rank") and file.stem[4:].isdigit()]
    if ranks and len(ranks) == len(files):
        opened = [_open_safetensors(file) for file in sorted(ranks, key=lambda one: int(one.stem[4:]))]
        return Weights(path, opened[0].tensors, opened[0].tied, opened, opened[0].engine)
    files = files or sorted([*path.glob("*.pt"), *path.glob("*.pth"), *path.glob("pytorch_model*.bin")])
    if not files:
        raise DumpError(f"{path} has no weights: expected *.safetensors, *.pt, *.bin or a .metadata file of DCP.")
    tensors: dict[str, Stored] = {}
    tied: dict[str, str] = {}
    for file in files:
        one = _open_file(file)
        tensors.update(one.tensors)
        tied.update(one.tied)
    return Weights(path, tensors, tied)


def _open_file(file: Path) -> Weights:
    if file.suffix == ".safetensors":
        return _open_safetensors(file)
    return _open_torch(file)


def _open_safetensors(file: Path) -> Weights:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise DumpError(f"{file} is not a safetensors file: its header does not fit.")
            head = json.loads(stream.read(length))
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise DumpError(f"{file} is not a safetensors file: {error}.") from None
    start = 8 + length
    facts = head.pop("__metadata__", None) or {}
    tensors = {}
    for name, entry in head.items():
        tensors[name] = _stored(file, name, entry, mapped, start, size)
    tied = json.loads(facts["tied"]) if "tied" in facts else {}
    return Weights(file, tensors, tied, engine=str(facts.get("engine", "")))


def _stored(file: Path, name: str, entry: Any, mapped: Any, start: int, size: int) -> Stored:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(int(one) for one in entry["shape"]), entry["data_offsets"]
        dtype = np.dtype(_DTYPES[kind])
        count = math.prod(shape)
        good = (
            0 <= begin <= end <= size - start and end - begin == count * dtype.itemsize and min(shape, default=0) >= 0
        )
    except (KeyError, TypeError, ValueError):
        raise DumpError(f"{file} has an entry that cannot be read: {name}.") from None
    if not good:
        raise DumpError(f"{file}: the data of {name} is not in the file. The file is damaged or cut off.")

    def read() -> Array:
        return np.frombuffer(mapped, dtype, count, start + begin).reshape(shape)

    return Stored(name, shape, kind, read)


def _open_torch(file: Path) -> Weights:
    """A file of torch.save, with `weights_only`: no code of the file runs."""
    import torch

    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise DumpError(f"{file} cannot be read as weights only: {str(error).splitlines()[0]}") from None
    return Weights(file, dict(_torch_tensors(loaded)))


def _torch_tensors(value: Any, head: str = "") -> Iterator[tuple[str, Stored]]:
    """The tensors in nested dicts. `model` or `state_dict` at the top is not part of the name."""
    import torch

    if not isinstance(value, Mapping):
        return
    for key, one in value.items():
        name = f"{head}{key}"
        if isinstance(one, torch.Tensor):
            yield name, from_torch(name, one)
        elif isinstance(one, Mapping):
            outer = not head and key in ("model", "state_dict", "module", "model_state_dict")
            yield from _torch_tensors(one, "" if outer else f"{name}.")


def from_torch(name: str, tensor: Any) -> Stored:
    """A tensor in memory, or mapped, as an entry."""
    import torch

    kinds = {torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
    kind = kinds.get(tensor.dtype)
    if kind is None:
        kind = next((k for k, d in _DTYPES.items() if np.dtype(d).name == str(tensor.dtype).rpartition(".")[2]), "U8")

    def read() -> Array:
        flat = tensor.detach().contiguous().cpu()
        if tensor.dtype in kinds:
            made: Array = flat.view(torch.uint8).numpy().view(_DTYPES[kind]).reshape(tuple(tensor.shape))
            return made
        return np.asarray(flat.numpy())

    return Stored(name, tuple(tensor.shape), kind, read)


def _open_dcp(path: Path) -> Weights:
    """A distributed checkpoint. Its metadata is a pickle: it is parsed, and no class in it is looked up."""
    try:
        tensors = _read_dcp(path)
    except ImportError:
        raise DumpError("reading a distributed checkpoint needs torch: `pip install torch`.") from None
    except Exception as error:
        raise DumpError(
            f"{path} cannot be read safely: {str(error).splitlines()[0]} Convert it: "
            "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE.pt`."
        ) from None
    return Weights(path, tensors)


def _read_dcp(path: Path) -> dict[str, Stored]:
    import torch

    metadata = _safe_metadata(path / ".metadata")
    found: dict[str, Stored] = {}
    parts: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for index, info in metadata["storage_data"].items():
        name, offsets = index
        parts.setdefault(name, []).append((offsets, info))
    for name, (shape, _) in metadata["tensors"].items():
        pieces = parts.get(name, [])

        def read(pieces: list[Any] = pieces, shape: tuple[int, ...] = shape) -> Array:
            whole: Optional[Any] = None
            for offsets, (relative, offset, length) in pieces:
                piece = _read_piece(path / relative, offset, length)
                if whole is None:
                    whole = torch.empty(shape, dtype=piece.dtype)
                place = tuple(slice(o, o + s) for o, s in zip(offsets, piece.shape))
                whole[place] = piece
            assert whole is not None
            return from_torch("", whole).read()

        found[name] = Stored(name, tuple(shape), metadata["tensors"][name][1], read)
    return found


def _read_piece(file: Path, offset: int, length: int) -> Any:
    import io

    import torch

    if length > file.stat().st_size:
        raise DumpError(f"{file} is damaged or cut off.")
    with file.open("rb") as stream:
        stream.seek(offset)
        return torch.load(io.BytesIO(stream.read(length)), map_location="cpu", weights_only=True)


def _safe_metadata(file: Path) -> dict[str, Any]:
    """The tensors of a distributed checkpoint, and where their pieces are."""
    loaded = read_pickle(file)
    tensors, storage = {}, {}
    for name, one in loaded.state["state_dict_metadata"].items():
        if one.kind.endswith(" TensorStorageMetadata"):
            dtype = str(_state(one.state["properties"])[0]).removeprefix("torch ")
            tensors[str(name)] = (_sizes(one.state["size"]), _TORCH.get(dtype, "U8"))
    for index, info in loaded.state["storage_data"].items():
        name = index.state["fqn"]
        if name not in tensors:
            continue
        if not is_plain_file_name(info.state["relative_path"]):
            raise DumpError(f"{file} names a file outside of the checkpoint.")
        place = (name, _sizes(index.state["offset"]) if index.state.get("offset") else ())
        storage[place] = (info.state["relative_path"], int(info.state["offset"]), int(info.state["length"]))
    return {"tensors": tensors, "storage_data": storage}


def _sizes(value: Any) -> tuple[int, ...]:
    """torch.Size([…]) as the pickle has it."""
    found = value.arguments[0] if isinstance(value, PickledObject) else value
    return tuple(int(one) for one in found)


def _state(value: Any) -> Any:
    return value.state if isinstance(value, PickledObject) else value
