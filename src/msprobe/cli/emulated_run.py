"""Runs the script of `msprobe precision --emulate` in a process of its own, as a file of orders says.

`python -m msprobe.cli.emulated_run ORDER SCRIPT …`: not a verb; only msprobe starts it.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import sys
from pathlib import Path
from typing import Any

from msprobe.cli.run import ScriptError, ScriptImports, find_start, run_as_main
from msprobe.config.emulation import EmulationOrder, read_order


class _EmulatedImports(ScriptImports):
    def __init__(self, order: EmulationOrder) -> None:
        super().__init__()
        self._order = order
        self._script: Any = None

    def _after_torch_import(self) -> None:
        from msprobe.pytorch.emulation.script import ScriptEmulation

        self._script = ScriptEmulation(self._order)
        self._script.install()

    def finish(self) -> None:
        if self._script is not None:
            self._script.finish()


def main() -> None:
    logging.getLogger("msprobe").setLevel(logging.WARNING)
    words = sys.argv[2:]
    module = words[1:] if words[:1] == ["-m"] else None
    try:
        start = find_start(argparse.Namespace(script=words, module=module))
    except ScriptError as error:
        print(f"msprobe: {error}.", file=sys.stderr)
        raise SystemExit(2) from None
    imports = _EmulatedImports(read_order(Path(sys.argv[1])))
    imports.watch()
    atexit.register(imports.finish)
    run_as_main(start)


if __name__ == "__main__":
    main()
