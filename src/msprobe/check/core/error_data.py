"""The tensors of a call that failed, kept as files for who looks into it (-save_error_data)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msprobe.check.core.framework import Framework
from msprobe.dump import layout
from msprobe.dump.tensor_files import codec


def save(kept: dict[str, Any], directory: Path, framework: Framework) -> None:
    """Inputs and outputs of a failing call in a directory of its own."""
    layout.make_directory(directory)
    for name, tensor in kept.items():
        payload = framework.payload(framework.on_host(tensor))
        file = layout.tensor_file_name(name, payload.suffix)
        layout.write_file(directory / file, (bytes(part) for part in codec.encode(payload)))  # type: ignore[call-overload]
