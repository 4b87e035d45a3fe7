"""The training side of the online check: it starts the sender and names the rank directories to send.

The sender (`msprobe.check.online.sender`) is a separate process that reads the finished dump. Training never waits for
the network, and a sender that fails does not affect the run or its dump.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Optional

from msprobe.collect import notices
from msprobe.config import TensorSettings
from msprobe.system.processes import python_command, python_environment

_KEYS = ("nfs_path", "host", "port", "secret_file", "tls_cert", "tls_key", "tls_ca")


class OnlineSender:
    def __init__(self, settings: TensorSettings, rank: Optional[int]) -> None:
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._pid = os.getpid()
        try:
            self._process = subprocess.Popen(
                python_command("from msprobe.check.online.sender import main; sys.exit(main())"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=python_environment(),
                start_new_session=True,
            )
        except OSError as error:
            notices.warn(f"the online check cannot be started: {error}. The dump is still written.")
            return
        values = {key: getattr(settings, key) for key in _KEYS}
        given = {key: _absolute(value) if isinstance(value, Path) else value for key, value in values.items()}
        self._send({"session": secrets.token_hex(16), "rank": rank or 0, **given})

    def open_directory(self, directory: Path) -> None:
        """A rank directory that a step will write."""
        self._send(_absolute(directory))

    def end(self) -> None:
        """The run has ended; the sender sends the rest on its own."""
        if self._process is not None and self._process.stdin is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _send(self, message: object) -> None:
        process = self._process
        if process is None or process.stdin is None or os.getpid() != self._pid:
            return
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except (OSError, ValueError):
            self._process = None
            notices.warn_once("the sender of the online check has ended; the dump is still written.")


def _absolute(path: Path) -> str:
    return str(path.absolute())
