"""`msprobe doctor`: what is installed, and what stands in the way, on one screen for bug reports."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.system.processes import python_command

EPILOG = """examples:
  msprobe doctor                 paste this into a bug report
  msprobe doctor --json
exit code: 0 nothing stands in the way, 1 problems found"""
OK, PROBLEM, NOTE = "ok", "problem", "note"
PARTS = (
    "stats._kernel",
    "stats._scan",
    "collect.records._frames",
    "collect.records._values",
    "dump.native._journal",
    "compare.measure._pairs",
)
"""The parts in C."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "microsoft-edge", "firefox")
_ISA = "ONEDNN_MAX_CPU_ISA"
_MULTIPLY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
_LONGEST = 60.0


class Finding(NamedTuple):
    """One line: ok, a problem, or a note; with what to do about it."""

    state: str
    what: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    found = list(examine())
    if args.json:
        from msprobe.report.json_output import print_json

        print_json("doctor", {"findings": [one._asdict() for one in found]})
    else:
        _print(found)
    return 1 if any(one.state == PROBLEM for one in found) else 0


def _print(found: list[Finding]) -> None:
    from msprobe.dump.plural import count
    from msprobe.report.terminal import print_lines

    problems = [one for one in found if one.state == PROBLEM]
    first = count(len(problems), "problem") if problems else "no problem found"
    print_lines([f"msprobe doctor: {first}"])
    width = max(len(one.what) for one in found)
    marks = {OK: "  ", NOTE: "- ", PROBLEM: "! "}
    print_lines([f"{marks[one.state]}{one.what:<{width}}  {one.text}" for one in found], bold=False)


def examine() -> Iterator[Finding]:
    """Looks at this machine; starts one process if the CPU has AMX."""
    yield _version()
    yield Finding(OK, "python", f"{platform.python_version()}, {sys.executable}")
    yield Finding(OK, "machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs")
    yield _c_parts()
    yield from _frameworks()
    yield _beside()
    yield from _amx()
    yield _browser()
    for what, place in (("here", Path.cwd()), ("temporary", Path(tempfile.gettempdir()))):
        yield _writable(what, place)


def _version() -> Finding:
    from msprobe import __version__
    from msprobe.system.neighbour import OURS, installed

    package = Path(__file__).resolve().parents[1]
    if installed(OURS) is None:
        return Finding(NOTE, "msprobe", f"{__version__} in {package}, not installed as {OURS}")
    return Finding(OK, "msprobe", f"{__version__} ({OURS}) in {package}")


def _c_parts() -> Finding:
    missing = [part for part in PARTS if importlib.util.find_spec(f"msprobe.{part}") is None]
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not missing:
        return Finding(OK, "C parts", f"all {len(PARTS)} are built; compiler: {compiler or 'none, and none is needed'}")
    todo = "install again" if compiler else "install a C compiler, then install again"
    text = f"{', '.join(missing)} not built: collecting and comparing is several times slower. To repair it, {todo}: "
    return Finding(PROBLEM, "C parts", f"{text}pip install --force-reinstall --no-deps msprobe-precision")


def _frameworks() -> Iterator[Finding]:
    from msprobe.system.neighbour import installed

    for name, words in (("torch", "PyTorch"), ("mindspore", "MindSpore"), ("torch_npu", "torch_npu")):
        version = installed(name)
        if version is not None:
            yield _framework(words, version)
    if installed("torch") is None and installed("mindspore") is None:
        text = "neither PyTorch nor MindSpore is installed: dumps can be read, not collected"
        yield Finding(NOTE, "framework", text)
    yield Finding(OK, "numpy", installed("numpy") or "not installed")


def _framework(words: str, version: str) -> Finding:
    from msprobe.frameworks.versions import MINDSPORE, PYTORCH, is_below, problem_of

    supported = next((one for one in (PYTORCH, MINDSPORE) if one.words == words), None)
    problem = problem_of(supported, version) if supported is not None else ""
    if supported is None or not problem:
        return Finding(OK, words, version)
    return Finding(PROBLEM if is_below(supported, version) else NOTE, words, problem)


def _beside() -> Finding:
    from msprobe.system.neighbour import THEIRS, neighbour

    problem = neighbour()
    return Finding(PROBLEM, THEIRS, problem) if problem else Finding(OK, THEIRS, "not in this environment")


def _amx() -> Iterator[Finding]:
    """Some virtual machines say that they have AMX but cannot run it: products in bf16 then end the process."""
    from msprobe.system.neighbour import installed

    if not _has_amx() or installed("torch") is None:
        return
    limit = os.environ.get(_ISA)
    environment = {key: value for key, value in os.environ.items() if key != _ISA}
    try:
        done = subprocess.run(
            python_command(_MULTIPLY), env=environment, capture_output=True, timeout=_LONGEST, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        yield Finding(NOTE, "AMX", "could not be tried: the process did not end in a minute")
        return
    if done.returncode != -signal.SIGILL:
        yield Finding(OK, "AMX", "works")
    elif limit:
        yield Finding(OK, "AMX", f"does not work here, and {_ISA}={limit} avoids it")
    else:
        text = f"this CPU announces AMX but cannot run it, torch in bf16 ends with SIGILL: set {_ISA}=AVX512_CORE_FP16"
        yield Finding(PROBLEM, "AMX", text)


def _has_amx() -> bool:
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False


def _browser() -> Finding:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is not None:
        return Finding(OK, "browser", found)
    return Finding(NOTE, "browser", "none here: msprobe view prints its address, and ssh -L brings it to your machine")


def _writable(what: str, place: Path) -> Finding:
    try:
        free = shutil.disk_usage(place).free / 1e9
    except OSError as error:
        return Finding(PROBLEM, what, f"{place} cannot be read: {error.strerror or error}")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(PROBLEM, what, f"{place} cannot be written: give a dump_path elsewhere")
    return Finding(OK, what, f"{place} can be written, {free:.1f} GB free")
