"""Saves the tensors of a failed call as files, for a bug report (-save_error_data)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msprobe.check.core.framework import Framework
from msprobe.dump import layout
from msprobe.dump.tensor_files import codec


def save(kept: dict[str, Any], directory: Path, framework: Framework) -> None:
    """Saves inputs and outputs of a failed call in a separate directory."""
    layout.make_directory(directory)
    for name, tensor in kept.items():
        payload = framework.payload(framework.to_host(tensor))
        file = layout.tensor_file_name(name, payload.suffix)
        layout.write_file(directory / file, (bytes(part) for part in codec.encode(payload)))  # type: ignore[call-overload]
