"""Runs the script of `msprobe graph dump` with op_debug_mode 4: the inputs of a graph that raises are kept.

`python -m msprobe.cli.failing_run STAGING SCRIPT …`: not a verb; only msprobe starts it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from msprobe.cli.run import ScriptError, ScriptImports, find_start, run_as_main


class _WatchedImports(ScriptImports):
    def __init__(self, staging: Path) -> None:
        super().__init__()
        self._staging = staging

    def _after_mindspore_import(self) -> None:
        from msprobe.mindspore.graph.failed_graphs import watch_graphs

        watch_graphs(self._staging)


def main() -> None:
    words = sys.argv[2:]
    module = words[1:] if words[:1] == ["-m"] else None
    try:
        start = find_start(argparse.Namespace(script=words, module=module))
    except ScriptError as error:
        print(f"msprobe: {error}.", file=sys.stderr)
        raise SystemExit(2) from None
    _WatchedImports(Path(sys.argv[1])).watch()
    run_as_main(start)


if __name__ == "__main__":
    main()
