"""Bad peers at a listener in this process: msprobe refuses them, logs this, and does nothing else."""

from __future__ import annotations

import hmac
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from online_setup import SECRET, Heard, certificate, parcel_of, secret_file, session

from msprobe.check.online import frame_mac, frames, parcel, receiver, sender, tls
from msprobe.check.online.frames import Channel, Refused
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump
from msprobe.system.processes import python_command


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 1.0)
    made = Heard(tmp_path)
    yield made
    made.listener.close()


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


def test_a_greeting_with_another_length_is_refused() -> None:
    """The bytes that both ends have seen are joined: every part except the last must have a fixed length."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(theirs).send(frames.HELLO, os.urandom(33))
        with pytest.raises(Refused, match="does not speak"):
            Channel(ours).greet(SECRET.encode(), session())


@pytest.mark.parametrize("size", [frames.SMALL_FILE, frames.SMALL_FILE + 1])
def test_a_file_that_becomes_shorter_ends_the_sender_and_its_frame_number_is_not_used_again(
    tmp_path: Path, size: int
) -> None:
    numbers: list[int] = []

    class Numbered(frame_mac.FrameMac):
        def start(self, number: int) -> None:
            numbers.append(number)
            super().start(number)

    (tmp_path / "file").write_bytes(b"short")
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("rb") as file:
        channel = Channel(ours)
        channel._out = Numbered(bytes(32))
        with pytest.raises(DumpError, match="became shorter"):  # and no OSError, which would be a lost connection
            channel.send(frames.CALL, b"body", [(file.fileno(), size)])
        channel.send(frames.DONE, b"")
    assert numbers == [0, 1]


def test_a_peer_that_does_not_prove_itself_in_time_is_refused(heard: Heard) -> None:
    with heard.connect() as peer:
        for _ in range(30):
            try:
                peer.sendall(b"M")
            except OSError:
                break
            time.sleep(0.1)
    heard.wait_for("did not prove in time")


def test_a_recorded_conversation_cannot_be_replayed(heard: Heard) -> None:
    recorded = bytearray()

    class Recording:
        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

        def sendall(self, data: bytes, flags: int = 0) -> None:
            recorded.extend(data)
            self._sock.sendall(data, flags)

    with heard.connect() as peer:
        channel = Channel(Recording(peer))  # type: ignore[arg-type]
        assert channel.greet(SECRET.encode(), session())["wanted"] is True
        channel.send(frames.CALL, parcel_of([]))
        heard.arrival()
    with heard.connect() as peer:
        peer.sendall(recorded)
        heard.wait_for("does not know the secret")
    assert heard.inbox.take() is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (parcel_of([["../evil", 1]], b"x"), "file name that is not valid"),
        (parcel_of([["a.pt", 5]], b"x"), "do not match its list"),
        (parcel_of([["a.pt", -1]]), "file without a valid size"),
        (parcel_of([["a\ud800.pt", 1]], b"x"), "file name that is not valid"),
        (parcel_of([], b"", files=[["a.pt", 1]]), "without a valid list of files"),
        (parcel_of([], b"", files=[["a.pt", 1, 7]]), "was not sent"),
        (parcel_of([], b"x", files=[["a.pt", 1, 0], ["b.pt", 2, 0]]), "was not sent"),
        (parcel_of([["a.pt", 1]], b"x", last=["0"]), "contents to drop"),
        (parcel_of([], framework="jax"), "unknown framework"),
        (parcel_of([["a.pt", 1], ["a.pt", 1]], b"xx"), "do not match its list"),
        (parcel_of([], call="os.system"), "without a valid name"),
        (parcel_of([], title="Torch.load"), "without a valid name"),
        (parcel_of([], step=-1), "without a step"),
        (parcel_of([], forward=5), "without records"),
        (parcel_of([]).replace(b'"backward": null', b'"backwart": null'), "without records"),
        (struct.pack("<I", 1 << 30) + b"{}", "longer than the parcel"),
        (struct.pack("<I", 2) + b"[]", "not a JSON object"),
        (struct.pack("<I", 2) + b"{[", "not JSON"),
    ],
)
def test_an_invalid_parcel_is_refused(tmp_path: Path, body: bytes, reason: str) -> None:
    position = 0

    def take(size: int) -> bytearray:
        nonlocal position
        part = bytearray(body[position : position + size])
        position += len(part)
        return part

    with pytest.raises(Refused, match=reason):
        parcel.unpack(len(body), take, tmp_path / "spool", parcel.KeptFiles(tmp_path / "kept"))
    assert not list(tmp_path.rglob("evil*"))


def test_a_changed_frame_is_refused(heard: Heard) -> None:
    with heard.connect() as peer:
        channel = Channel(peer)
        channel.greet(SECRET.encode(), session())
        body = parcel_of([])
        head = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.CALL, 0, 0, len(body))
        peer.sendall(head + body + bytes(32))
        heard.wait_for("a frame was changed in transit")
    assert heard.inbox.take() is None
    assert not list(heard.inbox._spool.iterdir())


def test_a_secret_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="read by every user"):
        frames.read_secret(Path(secret_file(tmp_path, 0o644)))
    with pytest.raises(DumpError, match="needs secret_file"):
        frames.read_secret(None)


def test_a_frame_that_is_repeated_on_its_connection_is_refused(heard: Heard) -> None:
    recorded = bytearray()
    with heard.connect() as peer:
        channel = Channel(peer)
        channel.greet(SECRET.encode(), session())
        body = parcel_of([])
        out: Any = channel._out
        head = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.CALL, 0, 0, len(body))
        out.start(0)
        out.update(head + body)
        recorded += head + body + out.digest()
        peer.sendall(recorded)
        heard.arrival()
        peer.sendall(recorded)
        heard.wait_for("frame 0, expected frame 1")
    assert heard.inbox.take() is None


def test_a_peer_that_knows_the_secret_still_cannot_send_invalid_frames(heard: Heard) -> None:
    for kind, length, reason in (
        (frames.CALL, 1 << 50, "are allowed"),
        (frames.HELLO, 0, "expected a call"),
    ):
        with heard.connect() as peer:
            Channel(peer).greet(SECRET.encode(), session())
            peer.sendall(frames.HEAD.pack(frames.MAGIC, frames.VERSION, kind, 0, 0, length))
            heard.wait_for(reason)
    assert heard.inbox.take() is None


def test_a_rank_that_is_not_listed_gets_this_answer(heard: Heard) -> None:
    with heard.connect() as peer:
        assert Channel(peer).greet(SECRET.encode(), session(rank=1))["wanted"] is False
        assert peer.recv(1) == b""
    assert heard.inbox.take() is None


def test_the_wishes_of_the_checker_cannot_be_changed_in_transit() -> None:
    """A peer in the middle that changes the checker's `wanted` is detected."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answers: list[Any] = []

        def check() -> None:
            channel = Channel(theirs)
            greeting = channel.receive_greeting(SECRET.encode())
            text = json.dumps({"wanted": True}).encode()
            proof = frames._proof(SECRET.encode(), b"checker", greeting.seen + text)
            channel.send(frames.WELCOME, proof + text.replace(b"true", b"null"))

        checker = threading.Thread(target=check)
        checker.start()
        with pytest.raises(Refused, match="does not know the secret"):
            answers.append(Channel(ours).greet(SECRET.encode(), session()))
        checker.join()
        assert not answers


def test_a_content_is_sent_once_and_is_in_every_call_that_names_it(heard: Heard, tmp_path: Path) -> None:
    directory = tmp_path / "step3" / "rank0"
    data = directory / "dump_tensor_data"
    data.mkdir(parents=True)
    contents = {"x.pt": os.urandom(1_200_000), "y.pt": os.urandom(100), "z.pt": b""}
    for name, content in contents.items():
        (data / name).write_bytes(content)
    os.link(data / "x.pt", data / "again.pt")
    calls = [["x.pt", "y.pt"], ["again.pt", "gone.pt"], ["x.pt", "again.pt", "z.pt"], ["y.pt"]]
    tasks = [task_of(number, names) for number, names in enumerate(calls)]
    shipment = parcel.Shipment(RankDump(directory), tasks)
    sent = 0
    with heard.connect() as peer:
        channel = Channel(peer)
        assert channel.greet(SECRET.encode(), session())["wanted"] is True
        for task, (files, last, new) in zip(tasks, shipment):
            opened = [(shipment.open(file.name), file.size) for file in new]
            text = parcel.text_of(task, files, last)
            channel.send(frames.CALL, parcel.LENGTH.pack(len(text)) + text, opened)
            sent += sum(size for _, size in opened)
            for descriptor, _ in opened:
                os.close(descriptor)
        for names in calls:
            task = heard.arrival().task
            assert task is not None
            for name in names:
                arrived = Path(task["rank"]) / "dump_tensor_data" / name
                if name == "gone.pt":
                    assert not arrived.exists()
                else:
                    assert arrived.read_bytes() == (data / name).read_bytes()
            shutil.rmtree(task["rank"])
        assert not [path for path in heard.inbox._spool.rglob("*") if path.is_file()]
    assert sent == sum(map(len, contents.values()))


def test_a_file_that_disappears_before_it_is_sent_ends_the_sender_with_a_reason(tmp_path: Path) -> None:
    data = tmp_path / "step0" / "rank0" / "dump_tensor_data"
    data.mkdir(parents=True)
    (data / "x.pt").write_bytes(b"x")
    shipment = parcel.Shipment(RankDump(data.parent), [task_of(0, ["x.pt"])])
    (data / "x.pt").unlink()
    with pytest.raises(DumpError, match=r"x\.pt cannot be read: No such file"):
        shipment.open("x.pt")


def test_a_run_whose_checker_is_stuck_does_not_wait_for_its_sender() -> None:
    """The sender reads its input, more than a pipe can hold, while nobody answers it."""
    with socket.create_server(("127.0.0.1", 0)) as silent, tempfile.TemporaryDirectory() as path:
        settings = {
            **dict.fromkeys(("nfs_path", "tls_cert", "tls_key", "tls_ca")),
            "session": "ab" * 16,
            "rank": 0,
            "host": "127.0.0.1",
            "port": silent.getsockname()[1],
            "secret_file": secret_file(Path(path)),
        }
        process = subprocess.Popen(
            python_command("from msprobe.check.online.sender import main; main()"), stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            process.stdin.flush()
            peer, _ = silent.accept()
            with peer:
                began = time.monotonic()
                for number in range(4000):
                    process.stdin.write(json.dumps(f"{path}/step{number}/rank0").encode().ljust(99) + b"\n")
                process.stdin.flush()
                assert time.monotonic() - began < 5
        finally:
            process.kill()
            process.wait()


def task_of(number: int, names: list[str]) -> dict[str, Any]:
    record = {"input_args": [{"data_name": name} for name in names]}
    members = {"framework": "pytorch", "step": 3, "backward": None}
    return {"call": f"Torch.relu.{number}", "title": "Torch.relu", "forward": record, **members}


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@needs_openssl
def test_with_tls_only_peers_with_the_right_certificate_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 2.0)
    cert, key = certificate(tmp_path, "known")
    other, other_key = certificate(tmp_path, "other")
    heard = Heard(tmp_path, tls_cert=cert, tls_key=key, tls_ca=cert)

    def connect(ca: str, own: tuple[str, str]) -> Any:
        settings = {"host": "127.0.0.1", "port": heard.listener.address[1], "secret_file": secret_file(tmp_path)}
        files = {"tls_ca": ca, "tls_cert": own[0], "tls_key": own[1]}
        return sender._TcpSender(sender._TrainingRun(), session(), {**settings, **files})._connect()

    try:
        with pytest.raises(Refused, match="certificate is not accepted"):
            connect(other, (cert, key))
        with pytest.raises((OSError, EOFError)):
            connect(cert, (other, other_key))
        with heard.connect() as peer, pytest.raises((OSError, EOFError, Refused)):
            Channel(peer).greet(SECRET.encode(), session())
        channel, _ = connect(cert, (cert, key))
        channel.send(frames.CALL, parcel_of([]))
        heard.arrival()
        channel.close()
        assert heard.inbox.take() is None
        heard.wait_for(f"encrypted with TLSv1.3, frames are signed with {frame_mac.names()[0]}")
    finally:
        heard.listener.close()


@needs_openssl
def test_a_peer_that_is_too_slow_in_the_tls_handshake_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "HANDSHAKE_SECONDS", 1.0)
    cert, key = certificate(tmp_path, "known")
    heard = Heard(tmp_path, tls_cert=cert, tls_key=key, tls_ca=cert)
    try:
        with heard.connect() as peer:
            peer.sendall(b"\x16\x03\x01\x40\x00")  # the start of a record of 16 kB
            for _ in range(40):
                try:
                    peer.sendall(b"\x01")
                except OSError:
                    break
                time.sleep(0.1)
        heard.wait_for("timed out")
    finally:
        heard.listener.close()


def test_the_number_of_connections_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(tmp_path)
    heard.listener._open = threading.Semaphore(1)
    try:
        with heard.connect() as first, heard.connect() as second:
            Channel(first).greet(SECRET.encode(), session())
            with pytest.raises((OSError, EOFError)):
                Channel(second).greet(SECRET.encode(), session())
            heard.wait_for(f"there are {receiver.MOST_CONNECTIONS} connections already")
        heard.wait_for("The connection from 127.0.0.1 ended")
        time.sleep(0.2)
        with heard.connect() as later:
            assert Channel(later).greet(SECRET.encode(), session())["wanted"] is True
    finally:
        heard.listener.close()


@pytest.mark.parametrize("length", [0, 1, 64, 4096, 100_003])
def test_the_code_of_a_frame_is_the_hmac_of_its_number_and_content(length: int) -> None:
    key, content = os.urandom(32), os.urandom(length)
    mine = frame_mac.FrameMac(key)
    for number in (0, 1, 1 << 40):
        mine.start(number)
        for part in (content[:7], bytearray(content[7:5000]), memoryview(content)[5000:]):
            mine.update(part)
        assert mine.digest() == hmac.digest(key, number.to_bytes(12, "little") + content, "sha256")


@pytest.mark.parametrize("length", [0, 1, 64, 4096, 100_003])
def test_the_fast_code_is_aes_gcm_of_an_empty_text(length: int) -> None:
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead", reason="cryptography is missing")
    key, content = os.urandom(32), os.urandom(length)
    mine = frame_mac.make(frame_mac.AES_GMAC, key)
    for number in (0, 1, 1 << 40):
        mine.start(number)
        for part in (content[:7], bytearray(content[7:5000]), memoryview(content)[5000:]):
            mine.update(part)
        assert mine.digest() == ciphers.AESGCM(key).encrypt(number.to_bytes(12, "little"), b"", content)


def _converse(sender_has: list[str], checker_has: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The codes that both ends use after a handshake and a frame in each direction."""
    checking = threading.get_ident()
    monkeypatch.setattr(frame_mac, "names", lambda: checker_has if threading.get_ident() == checking else sender_has)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending, used = Channel(theirs), []

        def send() -> None:
            sending.greet(SECRET.encode(), session())
            sending.send(frames.CALL, b"a call")
            used.append(sending._expect(frames.DONE))

        peer = threading.Thread(target=send)
        peer.start()
        channel = Channel(ours)
        channel.welcome(SECRET.encode(), channel.receive_greeting(SECRET.encode()), {"wanted": True})
        assert channel._expect(frames.CALL) == b"a call"
        channel.send(frames.DONE, b"done")
        peer.join(20)
        assert used == [b"done"]
    return sending.code, channel.code


def test_both_ends_use_the_fastest_code_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    both, old = [frame_mac.AES_GMAC, frame_mac.HMAC_SHA256], [frame_mac.HMAC_SHA256]
    if frame_mac.names() == both:
        assert _converse(both, both, monkeypatch) == (frame_mac.AES_GMAC,) * 2
    assert _converse(old, both, monkeypatch) == (frame_mac.HMAC_SHA256,) * 2
    assert _converse(both, old, monkeypatch) == (frame_mac.HMAC_SHA256,) * 2


@pytest.mark.parametrize("offered", [None, "AES-256-GMAC", 3, ["other"], [], [[]]])
def test_a_peer_that_offers_no_code_we_have_gets_hmac(offered: Any) -> None:
    assert frame_mac.choose(offered) == frame_mac.HMAC_SHA256


def test_without_the_package_only_hmac_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_mac, "_has_gmac", lambda: False)
    assert frame_mac.names() == [frame_mac.HMAC_SHA256]


def test_silent_peers_do_not_keep_a_sender_out(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    strangers = []
    try:
        for _ in range(300):
            strangers.append(heard.connect())
        with heard.connect() as peer:
            started = time.monotonic()
            assert Channel(peer).greet(SECRET.encode(), session())["wanted"] is True
            assert time.monotonic() - started < frames.HANDSHAKE_SECONDS  # it did not wait for any of them
    finally:
        for stranger in strangers:
            stranger.close()
        heard.listener.close()


@pytest.mark.parametrize("given", [("tls_cert", "tls_key"), ("tls_ca",), ("tls_cert", "tls_ca")])
def test_an_incomplete_tls_configuration_is_refused_by_both_sides(given: tuple[str, ...]) -> None:
    files = {key: "/some/file" if key in given else None for key in ("tls_cert", "tls_key", "tls_ca")}
    for context in (tls.server_context, tls.client_context):
        with pytest.raises(DumpError, match="TLS needs tls_cert, tls_key and tls_ca on both sides"):
            context(*files.values())


def test_a_file_on_another_file_system_is_copied_with_our_mode(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system here")
    with tempfile.NamedTemporaryFile(dir=elsewhere) as source:
        source.write(os.urandom(3_000_000))
        source.flush()
        parcel.link(source.name, str(tmp_path / "copy"))
        assert (tmp_path / "copy").read_bytes() == Path(source.name).read_bytes()
    assert (tmp_path / "copy").stat().st_mode & 0o777 & ~0o640 == 0
