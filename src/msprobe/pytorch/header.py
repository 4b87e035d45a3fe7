"""PyTorch's part of run.json."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def torch_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "framework": "pytorch",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": _devices(),
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "autocast": {"cpu": torch.is_autocast_enabled("cpu"), "cuda": torch.is_autocast_enabled("cuda")},
        "autocast_dtype": str(torch.get_autocast_dtype("cpu")),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": {
            "deterministic": torch.backends.cudnn.deterministic,
            "benchmark": torch.backends.cudnn.benchmark,
            "enabled": torch.backends.cudnn.enabled,
        },
        "torch_seed": torch.initial_seed(),
        "world_size": 1,
        "groups": [],
    }
    npu = getattr(torch, "npu", None)
    if npu is not None:
        facts["hf32"] = {"matmul": npu.matmul.allow_hf32, "conv": npu.conv.allow_hf32}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        facts["world_size"] = torch.distributed.get_world_size()
        facts["backend"] = torch.distributed.get_backend()
        facts["groups"] = _groups()
    return facts


def _devices() -> list[str]:
    found = []
    for kind in ("cuda", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found.append(f"{kind}: {module.get_device_name()}")
    return found or ["cpu"]


def _groups() -> list[list[int]]:
    known = torch.distributed.distributed_c10d._world.pg_group_ranks
    return [sorted(ranks) for ranks in known.values()]
