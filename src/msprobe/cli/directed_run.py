"""Runs the script of `msprobe again` or `msprobe prove` in a process of its own, as a file of directions says.

`python -m msprobe.cli.directed_run DIRECTIONS SCRIPT …`: not a verb; only msprobe starts it.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import sys
from pathlib import Path
from typing import Any, Callable

from msprobe.cli.run import ScriptError, ScriptImports, find_start, run_as_main
from msprobe.config.directions import Directions, read_directions


class _DirectedImports(ScriptImports):
    def __init__(self, directions: Directions) -> None:
        super().__init__()
        self._directions = directions
        self._torch: Any = None
        self._mindspore: Any = None

    def _after_torch_import(self) -> None:
        from msprobe.pytorch.directed.driver import DirectedDriver

        self._torch = DirectedDriver(self._directions)
        self._torch.install()

    def _after_mindspore_import(self) -> None:
        from msprobe.mindspore.directed.driver import DirectedDriver

        self._mindspore = DirectedDriver(self._directions)
        self._mindspore.install()

    def finish(self) -> None:
        if self._mindspore is not None:
            self._mindspore.finish()
        if self._torch is not None and not (self._mindspore is not None and self._mindspore.collected):
            self._torch.finish()


def run_under(make: Callable[[Path], Any]) -> None:
    """Runs the script of the command line under imports that `make` makes from the file before it, and ends them."""
    logging.getLogger("msprobe").setLevel(logging.WARNING)  # the user did not ask for a dump
    words = sys.argv[2:]
    module = words[1:] if words[:1] == ["-m"] else None
    try:
        start = find_start(argparse.Namespace(script=words, module=module))
    except ScriptError as error:
        print(f"msprobe: {error}.", file=sys.stderr)
        raise SystemExit(2) from None
    imports = make(Path(sys.argv[1]))
    imports.watch()
    atexit.register(imports.finish)
    run_as_main(start)


def main() -> None:
    run_under(lambda file: _DirectedImports(read_directions(file)))


if __name__ == "__main__":
    main()
