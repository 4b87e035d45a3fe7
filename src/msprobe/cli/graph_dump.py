"""`msprobe graph dump`: runs a training script with the complete Graph-mode Dump, on any device."""

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
  all words after SCRIPT or MODULE are arguments of the script. The script runs as with python.
exit code: that of the script; 2 if the configuration is wrong (the script does not start)"""
_SIZE = re.compile(r"(\d{1,12})\s*(|B|KB|MB|GB|TB)", re.IGNORECASE)
_LEAST = 64 << 20  # running.LEAST_BUDGET, not imported so that --help is fast
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
        help="limit for temporary files, such as 500MB; default 2GB",
    )
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module, as python -m")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << 10 * " KMGT".index(match[2].upper().rstrip("B") or " ") if match else 0
    if size < _LEAST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 64MB; write 500MB or 2GB")
    return size


def run(args: argparse.Namespace) -> int:
    from msprobe.graphdump.dumping.devices import find_device
    from msprobe.graphdump.dumping.dump_settings import EXCEPTION
    from msprobe.graphdump.dumping.running import DISK_BUDGET, VARIABLE, FrameworkDump, prepare_dump
    from msprobe.system.processes import python_command

    command = ["-m", *args.module] if args.module and not args.script else args.script
    if not command:
        return _refuse("give a SCRIPT, or -m MODULE, after the options of msprobe")
    if args.script and not Path(args.script[0]).is_file():
        return _refuse(f"the script {args.script[0]} does not exist")
    config = args.config or os.environ.get(VARIABLE)
    if not config:
        return _refuse(f"give --config data_dump.json, or set {VARIABLE}")
    found = prepare_dump(config, find_device())
    environment = dict(os.environ)
    environment.pop(VARIABLE, None)
    if found is None:
        return subprocess.call([sys.executable, *command], env=environment)
    environment[VARIABLE] = found.variable
    if isinstance(found, FrameworkDump):
        return _code(_wait(subprocess.Popen([sys.executable, *command], env=environment)))
    start, stderr = [sys.executable], None
    if found.settings.op_debug_mode == EXCEPTION:
        start = [*python_command("from msprobe.cli.failing_run import main; main()"), str(found.staging)]
        stderr = subprocess.PIPE
    process = subprocess.Popen([*start, *command], env=environment, stderr=stderr)
    running = found.start(process.pid, args.disk_budget or DISK_BUDGET, may_pause=True)
    running.resume_if_it_ends(process)
    errors = _ErrorRelay(process.stderr)
    code = _wait(process)
    failure = errors.text() if code != 0 else None
    running.end(failure)
    return _code(code)


def _code(code: int) -> int:
    """The exit code of a script, as a shell has it: 128 and the number of the signal that ended it."""
    return code if code >= 0 else 128 - code


def _refuse(message: str) -> int:
    print(f"msprobe graph dump: {message}.", file=sys.stderr)
    return 2


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Waits until the script ends. Forwards SIGTERM and SIGHUP to it."""

    def forward(number: int, frame: object) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the script too
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ErrorRelay:
    """Copies the standard error of the script to ours and keeps the last part."""

    def __init__(self, stream: Optional[IO[bytes]]) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._copy, args=(stream,), daemon=True) if stream else None
        if self._thread is not None:
            self._thread.start()

    def _copy(self, stream: IO[bytes]) -> None:
        for line in stream:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._end = (self._end + line)[-_NOTED:]

    def text(self) -> str:
        if self._thread is not None:
            self._thread.join(timeout=10)
        return self._end.decode("utf-8", "replace")
