"""What the tests of the online check share: an address, a secret, parcels, and a listener in this process."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from msprobe.check.online.frames import Session
from msprobe.check.online.inbox import Arrival, Inbox
from msprobe.check.online.receiver import Listener
from msprobe.config import load

SECRET = "a shared secret of many bytes"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def secret_file(path: Path, mode: int = 0o600) -> str:
    file = path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    return str(file)


def session(rank: int = 0) -> Session:
    return Session("ab" * 16, rank)


def parcel_of(named: list[list[Any]], body: bytes = b"", **changed: Any) -> bytes:
    task = {
        "framework": "pytorch",
        "call": "Torch.relu.0",
        "title": "Torch.relu",
        "step": 0,
        "forward": {},
        "backward": None,
        "files": [[*file, number] for number, file in enumerate(named)],
        "last": [],
    }
    text = json.dumps({**task, **changed}).encode()
    return struct.pack("<I", len(text)) + text + body


def certificate(path: Path, name: str) -> tuple[str, str]:
    """A certificate that vouches for itself, and its key."""
    cert, key = path / f"{name}.pem", path / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    extra = ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *extra], check=True, capture_output=True)
    return str(cert), str(key)


class Heard:
    def __init__(self, path: Path, **given: Any) -> None:
        config = path / "heard.json"
        section = {"is_online": True, "port": free_port(), "secret_file": secret_file(path), **given}
        config.write_text(json.dumps({"task": "run_ut", "run_ut": section}))
        self.log: list[str] = []
        self.inbox = Inbox(path / "spool", self.log.append)
        settings: Any = load("pytorch", config, task="run_ut").section
        self.listener = Listener(settings, self.inbox)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.address, timeout=10)

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while not any(text in line for line in self.log):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def arrival(self) -> Arrival:
        deadline = time.monotonic() + 20
        while (found := self.inbox.take()) is None:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)
        return found
