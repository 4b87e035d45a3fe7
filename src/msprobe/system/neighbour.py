"""mindstudio-probe in the same environment: it has the same import name and the same command."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Optional

OURS = "msprobe-precision"
THEIRS = "mindstudio-probe"
BESIDE = (
    f"{THEIRS} is installed in the same directory as msprobe ({OURS}): both own the import name and the command, and "
    "which files are used depends on the order of installation. Use one environment for each, or keep one: "
    f"pip uninstall -y {THEIRS} {OURS}; pip install {OURS} (or {THEIRS}). Do not uninstall only one: pip then removes "
    "files of the other, and it fails at import without a word about it."
)


def installed(name: str) -> Optional[str]:
    """The version of an installed distribution, found without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def neighbour() -> str:
    """What is wrong with the two distributions; empty if nothing is."""
    if installed(THEIRS) is not None:
        return BESIDE
    package = Path(__file__).resolve().parents[1]
    if (package / "msprobe.py").exists():
        return f"{package} has files of {THEIRS}: pip install --force-reinstall --no-deps {OURS}"
    return ""
