"""Runs the script of `msprobe precision --emulate` in a process of its own, as a file of orders says.

`python -m msprobe.cli.emulated_run ORDER SCRIPT …`: not a verb; only msprobe starts it.
"""

from __future__ import annotations

from typing import Any

from msprobe.cli.directed_run import run_under
from msprobe.cli.run import ScriptImports
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
    run_under(lambda file: _EmulatedImports(read_order(file)))


if __name__ == "__main__":
    main()
