"""Starts the script of the user in a process of its own, or under torchrun or msrun, with a file of directions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Optional, TextIO

from msprobe.config.directions import Directions
from msprobe.dump.errors import DumpError
from msprobe.system.processes import python_command

_CHILD = "msprobe.cli.directed_run"
_LAUNCHERS = ("torchrun", "msrun")
_STDERR = 2


@dataclass(frozen=True)
class Script:
    """A script and its arguments; with `module`, a module as of `python -m`. It may begin with torchrun or msrun.
    `quiet` sends its output to standard error: standard output is for JSON."""

    words: tuple[str, ...]
    module: bool = False
    quiet: bool = False

    def __str__(self) -> str:
        return " ".join(("-m", *self.words) if self.module else self.words)

    @property
    def launcher(self) -> str:
        first = Path(self.words[0]).name
        launches = first in _LAUNCHERS and not self.module and not Path(self.words[0]).is_file()
        return first if launches else ""

    def check(self) -> None:
        """Raises DumpError if there is no such script."""
        if not self.module and not self.launcher and not Path(self.words[0]).is_file():
            raise DumpError(f"cannot read {self.words[0]}: there is no such file")

    def command(self, directions: Path) -> list[str]:
        """The command that runs the script under `directions`."""
        child = python_command(f"from {_CHILD} import main; main()")
        if self.launcher == "msrun":
            options, script = _split_msrun(self.words[1:])
            start = [sys.executable, "-m", "mindspore.parallel.cluster.run", *options, "--join=True"]
            return [*start, "python", *child[1:], str(directions), *script]
        if self.launcher:
            options, script = _split_torchrun(self.words[1:])
            return [sys.executable, "-m", "torch.distributed.run", *options, "-m", _CHILD, str(directions), *script]
        script = ["-m", *self.words] if self.module else list(self.words)
        return [*child, str(directions), *script]


def _split_torchrun(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of torchrun, and the script with its arguments."""
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(list(words))
    place = len(words) - 1 - len(found.training_script_args)
    options = [word for word in words[:place] if word not in ("-m", "--module")]
    script = list(words[place:])
    return options, ["-m", *script] if found.module else script


def _split_msrun(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of msrun, and the script with its arguments. Every option of msrun has one value."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 1 if "=" in words[place] else 2
    script = list(words[place:])
    if script[:1] in (["python"], ["python3"]):
        script = script[1:]
    if not script:
        raise DumpError("msrun has no script: give it after the options of msrun")
    options = list(words[:place])
    for at, word in enumerate(options):
        if word.partition("=")[0] == "--join":  # msprobe waits for the end
            del options[at : at + (1 if "=" in word else 2)]
            break
    return options, script


def run_script(
    script: Script, directions: Directions, directory: Path, environment: Mapping[str, str], kept: Optional[Path] = None
) -> int:
    """Runs the script to its end and returns its exit code. Its output goes where ours goes, and to the file `kept`."""
    file = directory / "directions.json"
    directions.write(file)
    sys.stdout.flush()
    path = os.pathsep.join((str(Path(sys.executable).parent), environment.get("PATH", "")))  # msrun runs `python`
    stdout = subprocess.PIPE if kept is not None else _STDERR if script.quiet else None
    process = subprocess.Popen(script.command(file), env={**environment, "PATH": path}, stdout=stdout)
    try:
        if kept is not None and process.stdout is not None:
            _copy(process.stdout, kept, sys.stderr if script.quiet else None)
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _copy(output: IO[bytes], kept: Path, shown: Optional[TextIO]) -> None:
    """Passes the output on, line by line, and keeps it in a file."""
    with kept.open("wb") as file:
        kept.chmod(0o640)
        for line in output:
            file.write(line)
            print(line.decode(errors="replace"), end="", flush=True, file=shown)
