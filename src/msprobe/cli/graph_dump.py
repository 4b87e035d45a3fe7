"""`msprobe graph dump`: a training script with the Graph-mode Dump, all of it, on every device."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Optional

EPILOG = """example:
  msprobe graph dump --config data_dump.json train.py --epochs 1
  everything after SCRIPT or MODULE goes to the script, which runs as python would run it.
exit code: the script's own; 2 when the configuration is wrong, and then the script is not started"""
_SIZE = re.compile(r"(\d{1,12})\s*(|B|KB|MB|GB|TB)", re.IGNORECASE)
_LEAST = 64 << 20  # running.LEAST_BUDGET, not imported: --help stays light
_NOTED = 64 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe graph dump [--config FILE] [--disk-budget SIZE] SCRIPT ...\n"
        "       msprobe graph dump [--config FILE] [--disk-budget SIZE] -m MODULE ..."
    )
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", metavar="FILE", help="data_dump.json; without it $MINDSPORE_DUMP_CONFIG")
    parser.add_argument(
        "--disk-budget",
        type=_bytes,
        metavar="SIZE",
        help="most that files may take that are only there in passing, such as 500MB; default 2GB",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, as python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper().rstrip("B") or " ") if match else 0
    if size < _LEAST:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of at least 64MB, such as 500MB or 2GB")
    return size


def run(args: argparse.Namespace) -> int:
    from msprobe.graphdump.dumping.running import DISK_BUDGET, VARIABLE, prepared

    command = ["-m", *args.module] if args.module and not args.script else args.script
    if not command:
        return _refuse("give a SCRIPT, or -m MODULE; options of msprobe stand before it")
    if args.script and not Path(args.script[0]).is_file():
        return _refuse(f"there is no script {args.script[0]}")
    config = args.config or os.environ.get(VARIABLE)
    if not config:
        return _refuse(f"give --config data_dump.json, or set {VARIABLE}")
    found = prepared(config)
    environment = dict(os.environ)
    environment.pop(VARIABLE, None)
    if found is None:
        return subprocess.call([sys.executable, *command], env=environment)
    environment[VARIABLE] = found.variable
    notes_errors = found.settings.op_debug_mode == 4
    stderr = subprocess.PIPE if notes_errors else None
    process = subprocess.Popen([sys.executable, *command], env=environment, stderr=stderr)
    running = found.start(process.pid, args.disk_budget or DISK_BUDGET, may_pause=True)
    running.resume_if_it_ends(process)
    passed = _Passing(process.stderr)
    code = _wait(process)
    failure = passed.text() if code != 0 else None
    running.end(failure)
    return code if code >= 0 else 128 - code


def _refuse(message: str) -> int:
    print(f"msprobe graph dump: {message}.", file=sys.stderr)
    return 2


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Until the script ends; what asks us to end is passed on, and the script decides."""

    def pass_on(number: int, frame: object) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the script as well
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Passing:
    """Passes the script's errors on as they come and remembers the end of them."""

    def __init__(self, stream: Optional[IO[bytes]]) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._pass, args=(stream,), daemon=True) if stream else None
        if self._thread is not None:
            self._thread.start()

    def _pass(self, stream: IO[bytes]) -> None:
        for line in stream:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._end = (self._end + line)[-_NOTED:]

    def text(self) -> str:
        if self._thread is not None:
            self._thread.join(timeout=10)
        return self._end.decode("utf-8", "replace")
