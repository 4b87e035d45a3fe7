"""Weights in files: safetensors (one file or sharded), `.pt` of torch.save, distributed checkpoints (DCP).

Nothing is unpickled. Safetensors are mapped, so a checkpoint may be larger than memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np

from msprobe.dump.errors import DumpError, first_line
from msprobe.dump.layout import is_plain_file_name
from msprobe.dump.untrusted.regular_files import open_regular
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
    ranks = [file for file in files if file.stem.startswith("rank") and file.stem[4:].isdecimal()]
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
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise DumpError(f"{file} is not a safetensors file: its header does not fit.")
            head = json.loads(stream.read(length))
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{file} is not a safetensors file: {error}.") from None
    if not isinstance(head, dict):
        raise DumpError(f"{file} is not a safetensors file: its header is not an object.")
    start = 8 + length
    facts = head.pop("__metadata__", None) or {}
    tensors = {}
    for name, entry in head.items():
        tensors[name] = _stored(file, name, entry, mapped, start, size)
    return Weights(file, tensors, *_facts(file, facts))


def _facts(file: Path, facts: Any) -> tuple[dict[str, str], list[Weights], str]:
    """What the metadata of an engine's weights says: names for the same tensor, and the engine."""
    try:
        tied = json.loads(facts["tied"]) if "tied" in facts else {}
        if not all(isinstance(one, str) for one in tied.values()):
            raise TypeError
        return dict(tied), [], str(facts.get("engine", ""))
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise DumpError(f"{file} has __metadata__ that cannot be read.") from None


def _stored(file: Path, name: str, entry: Any, mapped: Any, start: int, size: int) -> Stored:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if any(type(one) is not int for one in (*shape, begin, end)):
            raise TypeError
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
        raise DumpError(f"{file} cannot be read as weights only: {first_line(error)}") from None
    try:
        return Weights(file, dict(_torch_tensors(loaded)))
    except (DumpError, RecursionError) as error:
        raise DumpError(f"{file} cannot be read: {first_line(error)}") from None


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

    if not fills_its_memory(tensor.detach()):
        raise DumpError(f"{name} is larger than its data, or not a plain tensor.")
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


def fills_its_memory(tensor: Any) -> bool:
    """Whether a tensor from a file is not larger than what the file has: a stride of 0 can claim any size."""
    import torch

    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or tensor.is_quantized
    ):
        return False
    return bool(tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes())


def _open_dcp(path: Path) -> Weights:
    """A distributed checkpoint. Its metadata is a pickle: it is parsed, and no class in it is looked up."""
    try:
        tensors = _read_dcp(path)
    except ImportError:
        raise DumpError("reading a distributed checkpoint needs torch: `pip install torch`.") from None
    except Exception as error:
        raise DumpError(
            f"{path} cannot be read safely: {first_line(error)} Convert it: "
            "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE.pt`."
        ) from None
    return Weights(path, tensors)


def _read_dcp(path: Path) -> dict[str, Stored]:

    metadata = _safe_metadata(path / ".metadata")
    found: dict[str, Stored] = {}
    parts: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for index, info in metadata["storage_data"].items():
        name, offsets = index
        parts.setdefault(name, []).append((offsets, info))
    for name, (shape, _) in metadata["tensors"].items():
        pieces = parts.get(name, [])

        def read(pieces: list[Any] = pieces, shape: tuple[int, ...] = shape, name: str = name) -> Array:
            try:
                return _join(path, pieces, shape)
            except Exception as error:
                raise DumpError(f"{path}: {name} cannot be read: {first_line(error)}") from None

        found[name] = Stored(name, tuple(shape), metadata["tensors"][name][1], read)
    return found


def _join(path: Path, pieces: list[Any], shape: tuple[int, ...]) -> Array:
    """A tensor of a distributed checkpoint. Its shape is what the pieces together have, before memory is taken."""
    import torch

    loaded = [(offsets, _read_piece(path / relative, *place)) for offsets, (relative, *place) in pieces]
    if not loaded or sum(piece.numel() for _, piece in loaded) < math.prod(shape):
        raise DumpError("its pieces are not complete.")
    whole = torch.empty(shape, dtype=loaded[0][1].dtype)
    for offsets, piece in loaded:
        whole[tuple(slice(o, o + s) for o, s in zip(offsets, piece.shape))] = piece
    return from_torch("it", whole).read()


def _read_piece(file: Path, offset: int, length: int) -> Any:
    import io

    import torch

    with open_regular(file) as stream:
        if not 0 <= offset <= offset + length <= os.fstat(stream.fileno()).st_size or length < 0:
            raise DumpError(f"{file} is damaged or cut off.")
        stream.seek(offset)
        piece = torch.load(io.BytesIO(stream.read(length)), map_location="cpu", weights_only=True)
    if not isinstance(piece, torch.Tensor) or not fills_its_memory(piece.detach()):
        raise DumpError(f"{file} has something else than a tensor.")
    return piece


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
