"""`msprobe mcp`: a server for coding agents, over standard input and output."""

from __future__ import annotations

import argparse
from pathlib import Path

EPILOG = """examples:
  msprobe mcp ./dumps                    answers about dumps under ./dumps; reads only
  msprobe mcp . --allow-run              may also run msprobe run, again, check, … in the current directory
  claude mcp add msprobe -- msprobe mcp ./dumps
exit code: 0 the client has closed the connection, 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("roots", nargs="*", type=Path, metavar="DIR", help="what may be read (default: this directory)")
    parser.add_argument("--allow-run", action="store_true", help="add a tool that runs scripts with msprobe")


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.mcp.server import make_server

    roots = args.roots or [Path()]
    for root in roots:
        if not root.is_dir():
            raise DumpError(f"{root} is not a directory.")
    make_server([root.resolve() for root in roots], args.allow_run).run("stdio")
    return 0
