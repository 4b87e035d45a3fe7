"""Two real processes: a training run that sends, a checker that judges, and what comes between them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe.check import frames, parcel
from msprobe.check.frames import Channel, Refused, Session
from msprobe.check.receiver import Inbox, Listener
from msprobe.config import load
from msprobe.dump.errors import DumpError

HERE = Path(__file__).parent
SECRET = "a shared secret of many bytes"
TRAIN = """
import sys, time
sys.path.insert(0, sys.argv[1])
import torch, nets
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(sys.argv[2])
torch.manual_seed(1)
model = nets.Gpt()
for _ in range(int(sys.argv[3])):
    debugger.start(model)
    model(torch.randint(64, (2, 16))).square().mean().backward()
    debugger.stop()
    debugger.step()
"""
CALLS_A_STEP = 16


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def secret_file(path: Path, mode: int = 0o600) -> str:
    file = path / "secret"
    file.write_text(SECRET)
    file.chmod(mode)
    return str(file)


class Pair:
    """The two configurations, and the processes that were started with them."""

    def __init__(self, path: Path, sender: dict[str, Any], checker: dict[str, Any]) -> None:
        self.path, self.out = path, path / "out"
        self.processes: list[subprocess.Popen[str]] = []
        self._write("train.json", "tensor", {"online_run_ut": True, **sender})
        self._write("check.json", "run_ut", {"is_online": True, **checker})

    def _write(self, name: str, task: str, section: dict[str, Any]) -> None:
        content = {"task": task, "level": "L1", "dump_path": str(self.path / "dump"), task: section}
        (self.path / name).write_text(json.dumps(content))

    def train(self, steps: int) -> subprocess.Popen[str]:
        return self._start([sys.executable, "-c", TRAIN, str(HERE), str(self.path / "train.json"), str(steps)])

    def check(self) -> subprocess.Popen[str]:
        arguments = ["run_ut", "--online", "-config", str(self.path / "check.json"), "-o", str(self.out)]
        return self._start([sys.executable, "-m", "msprobe", *arguments, "--jobs", "1"])

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def results(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for file in self.out.glob("*/step*/rank*/accuracy_checking_result_online.csv"):
            step = file.parent.parent.name
            found.update((step, row[0]) for row in list(csv.reader(file.open()))[1:])
        return found


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[Any]:
    pairs = []

    def make(sender: dict[str, Any], checker: dict[str, Any]) -> Pair:
        pairs.append(Pair(tmp_path, sender, checker))
        return pairs[-1]

    yield make
    for pair in pairs:
        for process in pair.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def finished(process: subprocess.Popen[str], seconds: float = 120) -> str:
    text, _ = process.communicate(timeout=seconds)
    return text


def test_a_checker_that_is_killed_and_restarted_misses_nothing_and_judges_nothing_twice(
    make_pair: Any, tmp_path: Path
) -> None:
    address = {"host": "127.0.0.1", "port": free_port(), "secret_file": secret_file(tmp_path)}
    pair = make_pair(address, address)
    first = pair.check()
    training = pair.train(4)
    deadline = time.monotonic() + 90
    while sum(pair.results().values()) < CALLS_A_STEP and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = pair.results()
    assert 0 < sum(before.values()) < 4 * CALLS_A_STEP
    second = pair.check()
    told = finished(second)
    assert training.wait(timeout=60) == 0
    assert second.returncode == 0, told
    assert f"{4 * CALLS_A_STEP} calls: {4 * CALLS_A_STEP} pass, 0 warning, 0 error" in told
    found = pair.results()
    assert set(found.values()) == {1}
    assert len(found) == 4 * CALLS_A_STEP
    assert set(before) <= set(found)
    assert not (pair.out / "spool").exists()


def test_a_shared_directory_is_another_way(make_pair: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    pair = make_pair({"nfs_path": str(shared)}, {"nfs_path": str(shared)})
    training = pair.train(2)
    assert training.wait(timeout=60) == 0
    home = shared / f"{'0' * 32}-0"
    home.mkdir()
    (home / "000000000000.parcel").write_bytes(struct.pack("<I", 1 << 31) + b"garbage")
    checker = pair.check()
    told = finished(checker)
    assert checker.returncode == 0, told
    assert len(pair.results()) == 2 * CALLS_A_STEP
    assert "was refused" in told


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make certificates")
def test_tls_carries_the_same(make_pair: Any, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    extra = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *extra], check=True, capture_output=True)
    address = {"host": "127.0.0.1", "port": free_port(), "secret_file": secret_file(tmp_path)}
    files = {"tls_cert": str(cert), "tls_key": str(key), "tls_ca": str(cert)}
    pair = make_pair({**address, **files}, {**address, **files})
    checker = pair.check()
    training = pair.train(1)
    assert training.wait(timeout=60) == 0
    told = finished(checker)
    assert checker.returncode == 0, told
    assert len(pair.results()) == CALLS_A_STEP


# Peers that are not what they should be: one listener, in this process.


class Heard:
    def __init__(self, path: Path) -> None:
        config = path / "check.json"
        section = {"is_online": True, "port": free_port(), "secret_file": secret_file(path)}
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


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 1.0)
    made = Heard(tmp_path)
    yield made
    made.listener.close()


def session() -> Session:
    return Session("ab" * 16, 0)


def parcel_of(files: list[list[Any]], body: bytes = b"", **changed: Any) -> bytes:
    task = {
        "framework": "pytorch",
        "call": "Torch.relu.0",
        "title": "Torch.relu",
        "step": 0,
        "forward": {},
        "backward": None,
        "files": files,
    }
    text = json.dumps({**task, **changed}).encode()
    return struct.pack("<I", len(text)) + text + body


def test_garbage_and_oversize_frames_are_refused(heard: Heard) -> None:
    with heard.connect() as peer:
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 100)
        heard.wait_for("does not speak this protocol")
    with heard.connect() as peer:
        peer.sendall(frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.PROOF, 0, 0, 1 << 40))
        heard.wait_for("at most 1024 are allowed")
    assert heard.inbox.take() is None


def test_a_peer_without_the_secret_is_refused_and_so_is_a_checker_without_it(heard: Heard) -> None:
    with heard.connect() as peer, pytest.raises((EOFError, OSError)):
        Channel(peer).greet(b"another secret, as long as ours", session())
    heard.wait_for("does not know the secret")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        impostor = Channel(theirs)
        impostor.send(frames.HELLO, os.urandom(32))
        impostor_answer = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.WELCOME, 0, 1, 34) + bytes(32) + b"{}"
        theirs.sendall(impostor_answer)
        with pytest.raises(Refused, match="checker does not know"):
            Channel(ours).greet(SECRET.encode(), session())


def test_one_who_says_nothing_is_shown_out(heard: Heard) -> None:
    with heard.connect() as peer:
        for _ in range(30):
            try:
                peer.sendall(b"M")
            except OSError:
                break
            time.sleep(0.1)
    heard.wait_for("took too long")


def test_a_recorded_conversation_cannot_be_replayed(heard: Heard) -> None:
    recorded = bytearray()

    class Recording:
        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

        def sendall(self, data: bytes) -> None:
            recorded.extend(data)
            self._sock.sendall(data)

    with heard.connect() as peer:
        channel = Channel(Recording(peer))  # type: ignore[arg-type]
        assert channel.greet(SECRET.encode(), session())["wanted"] is True
        channel.send(frames.CALL, parcel_of([]))
        deadline = time.monotonic() + 10
        while (arrival := heard.inbox.take()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert arrival is not None
    with heard.connect() as peer:
        peer.sendall(recorded)
        heard.wait_for("does not know the secret")
    assert heard.inbox.take() is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (parcel_of([["../evil", 1]], b"x"), "file name that is none"),
        (parcel_of([["a.pt", 5]], b"x"), "not what it says"),
        (parcel_of([["a.pt", -1]]), "file name that is none"),
        (parcel_of([["a.pt", 1], ["a.pt", 1]], b"xx"), "not what it says"),
        (parcel_of([], call="os.system"), "without a proper name"),
        (parcel_of([], title="Torch.load"), "without a proper name"),
        (parcel_of([], step=-1), "without a step"),
        (parcel_of([], forward=5), "without records"),
        (struct.pack("<I", 1 << 30) + b"{}", "longer than the parcel"),
        (struct.pack("<I", 2) + b"[]", "no object"),
        (struct.pack("<I", 2) + b"{[", "no JSON"),
    ],
)
def test_a_parcel_that_is_not_right_is_refused(tmp_path: Path, body: bytes, reason: str) -> None:
    position = 0

    def take(size: int) -> bytes:
        nonlocal position
        part = body[position : position + size]
        position += len(part)
        return part

    with pytest.raises(Refused, match=reason):
        parcel.unpack(len(body), take, tmp_path / "spool")
    assert not list(tmp_path.rglob("evil*"))


def test_a_changed_frame_is_refused(heard: Heard) -> None:
    with heard.connect() as peer:
        channel = Channel(peer)
        channel.greet(SECRET.encode(), session())
        body = parcel_of([])
        head = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.CALL, 0, 0, len(body))
        peer.sendall(head + body + bytes(32))
        heard.wait_for("proof is wrong")
    assert heard.inbox.take() is None
    assert not list(heard.inbox._spool.iterdir())


def test_a_secret_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="read by everybody"):
        frames.read_secret(Path(secret_file(tmp_path, 0o644)))
    with pytest.raises(DumpError, match="needs secret_file"):
        frames.read_secret(None)
