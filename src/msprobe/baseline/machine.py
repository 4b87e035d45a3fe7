"""What decides whether two runs can agree bit by bit: CPU, device, framework version, threads, a few variables."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
_FEATURES = re.compile(r"(avx\w*|fma\w*|amx\w*|sse4_2|sve\w*|asimd\w*|bf16|i8mm)\Z")
_MOST_OF_CPUINFO = 1 << 16
_LONGEST = 200


@dataclass(frozen=True)
class Machine:
    """The facts of one run that its last bits may depend on."""

    arch: str
    cpu: str
    features: str
    variables: str
    device: str
    framework: str
    version: str
    threads: int

    @property
    def key(self) -> str:
        """The directory of a baseline of this machine. The number of threads is not part of it: one machine has one
        baseline."""
        digest = hashlib.blake2b(
            f"{self.cpu}|{self.features}|{self.variables}".encode("utf-8", "surrogatepass"), digest_size=4
        ).hexdigest()
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{self.arch}-{self.device}-{self.framework}{self.public}-{digest}")

    @property
    def public(self) -> str:
        """The version without its local part: 2.13.0 of 2.13.0+cpu."""
        return self.version.partition("+")[0]

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    @property
    def text(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.framework} {self.version}, {self.device}, {self.cpu or self.arch}, {threads}"

    def unlike(self, other: Machine) -> list[str]:
        """What is different on `other`: such a run may be rounded differently."""
        variables = f"the environment {self.variables}" if self.variables else f"no {other.variables}"
        texts = {"arch": f"architecture {self.arch}", "features": "different CPU features", "variables": variables}
        mine, theirs = asdict(self), asdict(other)
        found = {key for key in mine if mine[key] != theirs[key]}
        if "cpu" in found:
            found.discard("features")
        return [texts.get(key, f"{key} {mine[key]}") for key in mine if key in found]


def machine_of(run: Mapping[str, Any]) -> Machine:
    """The machine of a run that this computer has just made; `run` is its run.json."""
    framework = run.get("framework")
    name = framework if framework in ("pytorch", "mindspore") else "unknown"
    version = run.get("torch" if name == "pytorch" else "mindspore")
    device, threads = run.get("device"), run.get("threads")
    kinds = sorted({str(one).partition(":")[0] for one in device}) if isinstance(device, list) else []
    cpu, features = _cpu()
    return Machine(
        arch=platform.machine(),
        cpu=cpu,
        features=features,
        variables=" ".join(f"{key}={os.environ[key]}" for key in _VARIABLES if key in os.environ)[:_LONGEST],
        device="+".join(kinds)[:_LONGEST] or "cpu",
        framework={"pytorch": "torch"}.get(name, name),
        version=str(version)[:_LONGEST],
        threads=threads if isinstance(threads, int) else 0,
    )


def _cpu() -> tuple[str, str]:
    """The name of the CPU and those of its features that numeric libraries use."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_OF_CPUINFO)
    except OSError:
        return platform.processor(), ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return fields.get("model name", "")[:_LONGEST], " ".join(sorted(filter(_FEATURES.match, flags)))
