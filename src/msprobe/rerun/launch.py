"""Starts the script of the user in a process of its own, or under torchrun, with a file of directions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe.config.directions import Directions
from msprobe.dump.errors import DumpError
from msprobe.system.processes import python_command

_CHILD = "msprobe.cli.directed_run"


@dataclass(frozen=True)
class Script:
    """A script and its arguments; with `module`, a module as of `python -m`. It may begin with torchrun."""

    words: tuple[str, ...]
    module: bool = False

    def __str__(self) -> str:
        return " ".join(("-m", *self.words) if self.module else self.words)

    @property
    def launcher(self) -> str:
        first = Path(self.words[0]).name
        return first if first == "torchrun" and not self.module and not Path(self.words[0]).is_file() else ""

    def check(self) -> None:
        """Raises DumpError if there is no such script."""
        if not self.module and not self.launcher and not Path(self.words[0]).is_file():
            raise DumpError(f"cannot read {self.words[0]}: there is no such file")

    def command(self, directions: Path) -> list[str]:
        """The command that runs the script under `directions`."""
        if self.launcher:
            options, script = _split_torchrun(self.words[1:])
            return [sys.executable, "-m", "torch.distributed.run", *options, "-m", _CHILD, str(directions), *script]
        script = ["-m", *self.words] if self.module else list(self.words)
        return [*python_command(f"from {_CHILD} import main; main()"), str(directions), *script]


def _split_torchrun(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of torchrun, and the script with its arguments."""
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(list(words))
    place = len(words) - 1 - len(found.training_script_args)
    options = [word for word in words[:place] if word not in ("-m", "--module")]
    script = list(words[place:])
    return options, ["-m", *script] if found.module else script


def run_script(script: Script, directions: Directions, directory: Path, environment: Mapping[str, str]) -> int:
    """Runs the script to its end and returns its exit code. Its output goes where ours goes."""
    file = directory / "directions.json"
    directions.write(file)
    sys.stdout.flush()
    process = subprocess.Popen(script.command(file), env=dict(environment))
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
