"""Ranks, the mode, and MindSpore's part of run.json."""

from __future__ import annotations

import os
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore.communication import management


def in_graph_mode() -> bool:
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


def rank() -> Optional[int]:
    """The global rank, or None in a run without ranks."""
    if is_initialised():
        return int(management.get_rank())
    launched = os.environ.get("RANK_ID", "")  # set by msrun; communication.init() may come later
    return int(launched) if launched.isdigit() and "MS_WORKER_NUM" in os.environ else None


def local_rank() -> int:
    """The rank inside this node, with which the `rank` key is compared."""
    if is_initialised():
        try:
            return int(management.get_local_rank())
        except (RuntimeError, ValueError):  # the backend does not know it
            pass
    for name in ("LOCAL_RANK", "DEVICE_ID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return rank() or 0


def mindspore_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "framework": "mindspore",
        "mindspore": mindspore.__version__,
        "numpy": np.__version__,
        "device": [str(mindspore.get_context("device_target"))],
        "mode": "graph" if in_graph_mode() else "pynative",
        "deterministic": str(mindspore.get_context("deterministic")),
        "mindspore_seed": mindspore.get_seed(),
        "numpy_seed": int(np.random.get_state()[1][0]),  # type: ignore[index]
        "hccl_deterministic": os.environ.get("HCCL_DETERMINISTIC"),
        "world_size": 1,
        "groups": [],
    }
    if is_initialised():
        facts["world_size"] = int(management.get_group_size())
        facts["groups"] = [list(range(facts["world_size"]))]
    return facts


def is_initialised() -> bool:
    return bool(management.GlobalComm.INITED)
