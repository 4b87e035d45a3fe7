"""Python processes of msprobe never import a module that lies in the current directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from msprobe.system.processes import python_command, python_environment

PLANTED = ("resource", "json", "hmac", "numpy")


@pytest.mark.parametrize("code", ["import resource, json, hmac, numpy", "import msprobe.check.online.sender"])
def test_a_module_in_the_current_directory_does_not_run(tmp_path: Path, code: str) -> None:
    """The second line is what the sender of the online check runs before it sends anything."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write({name!r})\n")
    ended = subprocess.run(
        python_command(code), cwd=tmp_path, env=python_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "ran").exists()
