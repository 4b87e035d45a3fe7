"""The categories of PyTorch's support_wrap_ops.yaml; reading such a file is the same for both frameworks."""

from __future__ import annotations

from pathlib import Path

from msprobe.frameworks import api_lists
from msprobe.frameworks.api_lists import SWITCHED_OFF, ApiListError

__all__ = ["CATEGORIES", "SWITCHED_OFF", "ApiListError", "read_lists"]

# If one function has two names, the earlier category counts: torch.conv2d is Functional, torch.lstm VF.
CATEGORIES = ("functional", "vf", "tensor", "torch", "distributed", "npu", "ops")


def read_lists(path: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The lists of names that are on and off; both have every category."""
    return api_lists.read_lists(path, CATEGORIES)
