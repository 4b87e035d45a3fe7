"""The part of run.json that does not depend on the framework: user, command, machine and settings.

`msprobe compare` reads it first, to reject two runs that cannot be compared.
"""

from __future__ import annotations

import os
import platform
import random
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import msprobe
from msprobe.collect.run.git_commit import commit_of_script
from msprobe.config import Settings

_ENVIRONMENT = (
    "ASCEND_",
    "CUBLAS_",
    "CUDA_",
    "FLASH_",
    "GLOO_",
    "GLOG_",
    "HCCL_",
    "MASTER_",
    "MS_",
    "MINDSPORE_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32",
    "OMP_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "TORCH_",
)


def run_facts(settings: Settings) -> dict[str, Any]:
    return {
        "msprobe": msprobe.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "command": [sys.executable, *sys.argv],
        "directory": str(Path.cwd()),
        "git_commit": commit_of_script(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": {
            "task": settings.task,
            "level": settings.level,
            "precision": "high" if settings.formats else settings.precision,
            "summary_mode": getattr(settings.section, "summary_mode", None),
            "compile": settings.compile,
        },
        "random_state": zlib.crc32(repr(random.getstate()).encode()),
        "environment": {key: os.environ[key] for key in sorted(os.environ) if key.startswith(_ENVIRONMENT)},
    }
