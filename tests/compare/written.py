"""Dumps written by hand in the exact format, of any size, with differences where a test wants them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Optional

import numpy as np


def tensor(
    value: float, shape: Optional[list[int]] = None, dtype: str = "torch.float32", **more: Any
) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": dtype,
        "shape": [8, 16] if shape is None else shape,
        "Max": value * 3,
        "Min": -value * 2.5,
        "Mean": value * 0.01,
        "Norm": value * 20,
        "requires_grad": True,
        **more,
    }


def scalar(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}


def call(*inputs: Any, output: Any, **kwargs: Any) -> dict[str, Any]:
    return {"input_args": list(inputs), "input_kwargs": kwargs, "output": [output]}


def write_dump(
    root: Path,
    data: dict[str, Any],
    construct: Optional[dict[str, Any]] = None,
    stacks: Optional[dict[str, Any]] = None,
    step: int = 0,
    rank: Optional[int] = None,
    framework: str = "pytorch",
    task: str = "statistics",
    run: Optional[dict[str, Any]] = None,
) -> Path:
    directory = root / f"step{step}" / ("rank" if rank is None else f"rank{rank}")
    directory.mkdir(parents=True, exist_ok=True)
    head = {"task": task, "level": "mix", "framework": framework, "dump_data_dir": None, "data": data}
    (directory / "dump.json").write_text(json.dumps(head))
    (directory / "construct.json").write_text(json.dumps(construct or {}))
    (directory / "stack.json").write_text(json.dumps(stacks or {}))
    if run is not None:
        (directory / "run.json").write_text(json.dumps(run))
    return root


def saved(directory: Path, name: str, array: Any) -> dict[str, Any]:
    """A tensor item with its .npy file in a rank directory."""
    folder = directory / "dump_tensor_data"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", array)
    return tensor(1.0, list(array.shape), data_name=f"{name}.npy")


def model_data(
    rows: int, drift_from: Optional[int] = None, drift: float = 1e-2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """About `rows` rows of a deep model: blocks of linear, relu and layer_norm, four rows a call."""
    numbers = random.Random(0)
    data: dict[str, Any] = {}
    construct: dict[str, Any] = {}
    seen = {"linear": 0, "relu": 0, "layer_norm": 0}
    for index in range(rows // 4):
        api = list(seen)[index % 3]
        name = f"Functional.{api}.{seen[api]}.forward"
        seen[api] += 1
        block = f"Module.blocks.{index // 30}.{api}{index % 30}.Layer.forward.0"
        values = [numbers.random() + 0.5 for _ in range(3)]
        more = 1 + drift if drift_from is not None and index >= drift_from else 1.0
        before = 1 + drift if drift_from is not None and index > drift_from else 1.0
        data[name] = call(
            tensor(values[0] * before), tensor(values[1], [16, 16]), scalar(1e-5), output=tensor(values[2] * more)
        )
        construct[name] = block
    return data, construct
