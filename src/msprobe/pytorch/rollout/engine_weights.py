"""Records the weights of a vLLM engine as safetensors, when they are loaded and still have their own layout.

On some devices vLLM repacks weights after loading (on CPU the original is even emptied), so this is the only moment
to see what was loaded: fused, and the shard of this rank.
"""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import torch

from msprobe.collect import notices
from msprobe.dump import layout

_MARK = "_msprobe_wrapped"
_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def record_at_load(directory: str) -> None:
    """Writes `rank{R}.safetensors` into the directory each time vLLM has loaded weights, before it repacks them."""
    from vllm.model_executor.model_loader import base_loader

    original = base_loader.process_weights_after_loading
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def process(model: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            write_weights(model, Path(directory))
        except Exception as error:
            notices.warn_once(f"the weights of vLLM were not recorded in {directory}: {error}")
        return original(model, *args, **kwargs)

    setattr(process, _MARK, True)
    base_loader.process_weights_after_loading = process


def write_weights(model: Any, directory: Path) -> Path:
    """Writes the parameters of a model; parameters that share memory (tied ones) have one entry and are listed."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    layout.make_directory(directory)
    entries: dict[str, Any] = {}
    kept: dict[int, str] = {}
    tied: dict[str, str] = {}
    tensors = []
    offset = 0
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.dtype not in _NAMES or not parameter.numel():
            continue
        if id(parameter) in kept:
            tied[name] = kept[id(parameter)]
            continue
        kept[id(parameter)] = name
        size = parameter.numel() * parameter.element_size()
        entries[name] = {
            "dtype": _NAMES[parameter.dtype],
            "shape": list(parameter.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
        tensors.append(parameter)
    facts = {"engine": "vllm", "rank": str(rank), "world_size": str(_world_size()), "tied": json.dumps(tied)}
    head = json.dumps({"__metadata__": facts, **entries}).encode()
    head += b" " * (8 * math.ceil(len(head) / 8) - len(head))
    file = directory / f"rank{rank}.safetensors"
    parts = (len(head).to_bytes(8, "little"), head)
    layout.write_file(file, _chunks(parts, tensors))
    notices.inform(f"the weights of rank {rank}, {len(entries)} tensors, are in {os.fspath(file)}.")
    return file


def _chunks(head: tuple[bytes, ...], tensors: list[Any]) -> Any:
    yield from head
    for tensor in tensors:
        flat = tensor.detach().contiguous().cpu().flatten().view(torch.uint8)
        yield flat.numpy().tobytes()


def _world_size() -> int:
    return int(torch.distributed.get_world_size()) if torch.distributed.is_initialized() else 1
