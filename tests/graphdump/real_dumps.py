"""Dumps that MindSpore itself writes, each made once a test session in a process of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NETS = Path(__file__).with_name("nets")
ALEXNET = Path(__file__).parents[2] / "examples" / "alexnet" / "train_alexnet.py"
_kept = tempfile.TemporaryDirectory(prefix="msprobe-dumps-")


@functools.cache
def make(script: Path, *arguments: str) -> Path:
    """The dump of one run of a script; `{out}` among the arguments is the dump's directory."""
    out = Path(tempfile.mkdtemp(dir=_kept.name))
    command = [sys.executable, str(script), *(text.replace("{out}", str(out)) for text in arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return out


def faulty(*settings: str) -> Path:
    return make(NETS / "faulty.py", "{out}", *settings)


def branches(*settings: str) -> Path:
    return make(NETS / "branches.py", "{out}", *settings)


def alexnet() -> Path:
    return make(ALEXNET, "--dump", "{out}", "--steps", "2")
