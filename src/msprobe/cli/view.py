"""`msprobe view`: shows a dump, two dumps, results or a running job in the browser."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
from pathlib import Path

EPILOG = """examples:
  msprobe view ./target_dump ./golden_dump       two dumps: the answer, and everything behind it
  msprobe view ./dump_path                       one dump, also during the run
  msprobe view ./watch                           a watched run: trends and alarms
  msprobe view ./run_ut_results                  the results of run_ut
  msprobe view ./target_dump ./golden_dump --export report.html
The server is reachable from this machine only. Ctrl-C stops it. Exit code: 0 viewed, 2 nothing to view"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("target", type=Path, metavar="DIR", help="a dump, a watched run or the results of run_ut")
    parser.add_argument("golden", nargs="?", type=Path, metavar="GOLDEN", help="the dump that is known to be good")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write one HTML file and exit")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free port")
    parser.add_argument("--no-open", action="store_true", help="print the address; do not open a browser")


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.report.progress import progress

    if not 0 <= args.port <= 65535:
        raise DumpError(f"--port must be between 0 and 65535, not {args.port}.")
    if args.export is not None:
        from msprobe.cli.outputs import check_outputs
        from msprobe.view.export import export_material
        from msprobe.view.material import open_material

        check_outputs([args.export])
        material = open_material(args.target, args.golden, progress=progress)
        try:
            export_material(material, args.export)
        except OSError as error:
            raise DumpError(f"{args.export} cannot be written: {error.strerror or error}.") from None
        print(f"Wrote {args.export}")
        return 0
    return _serve(args, progress)


def _serve(args: argparse.Namespace, progress: object) -> int:
    from msprobe.view.server import ViewServer
    from msprobe.view.session import Session

    server = ViewServer(Session(args.target, args.golden, progress), args.port)  # type: ignore[arg-type]
    port = server.port
    try:
        print(f"View: {server.address}")
        print(f"From another machine: ssh -L {port}:127.0.0.1:{port} {_login()}  and open the same address")
        print("Ctrl-C stops the server.", flush=True)
        if not args.no_open and _has_screen():
            import webbrowser

            webbrowser.open(server.address_once)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return 0


def _login() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def _has_screen() -> bool:
    """Whether a browser can open a window here; without a display `webbrowser` would start a text browser."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
