"""Readers of other input than dumps of msprobe: graph-mode dumps, asynchronous files, the network, watched runs."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from pathlib import Path

import numpy as np
from fuzzing import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "graphdump"))
sys.path.insert(0, str(Path(__file__).parents[1] / "check"))
from async_samples import dump_file, op_input, op_output
from online_setup import SECRET, parcel_of, session

from msprobe.check.online import frames, parcel, shared_directory
from msprobe.check.online.frames import Channel, Refused
from msprobe.cli import _run
from msprobe.dump.errors import DumpError
from msprobe.graphdump import GraphDump
from msprobe.graphdump.check import check
from msprobe.graphdump.files.convert import Request, convert_file, plan
from msprobe.graphdump.files.schema import message_class
from msprobe.graphdump.graphs.graph_pb import parse_pb
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.store import Store
from msprobe.watch.targets import Target as Watched

JOURNAL = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 1, 7, 1, 512, 4096) + bytes(480) + b"x" * 4104
"""A rollback journal with one page, as a crash leaves it."""
NETWORK = (Refused, EOFError, OSError)
"""What the checker logs in one sentence, and then goes on."""


def read_graph(path: Path) -> None:
    dump = GraphDump(path)
    _ = dump.notes
    check(dump)


def convert(path: Path) -> None:
    for request in (Request(), Request(target="NCHW", kind="pt")):
        jobs, _ = plan(path / "in", path / "out")
        for job in jobs:
            convert_file(job, request)


def read_parcel(path: Path) -> None:
    body = (path / "parcel").read_bytes()
    position = 0

    def take(size: int) -> bytearray:
        nonlocal position
        part = bytearray(body[position : position + size])
        position += len(part)
        if not part:
            raise EOFError
        return part

    kept = parcel.KeptFiles(path / "kept")
    _, last = parcel.unpack(len(body), take, path / "spool", kept)
    kept.settle(last)


def read_shared(path: Path) -> None:
    shared_directory._unpack(path / "000000000000.parcel", path / "spool")


def hear(path: Path) -> None:
    """A peer that knows the secret and says something odd about itself, then sends a changed frame."""
    about, body = (path / "about").read_bytes(), (path / "frame").read_bytes()
    ours, theirs = socket.socketpair()
    peer = threading.Thread(target=_speak, args=(theirs, about, body))
    peer.start()
    try:
        channel = Channel(ours)
        greeting = channel.receive_greeting(SECRET.encode())
        channel.welcome(SECRET.encode(), greeting, {"wanted": True})
        kind, length = channel.head(frames.LARGEST)
        if kind == frames.CALL and length < 1 << 20:
            channel.take_body(length)
    finally:
        ours.close()
        peer.join()


def _speak(sock: socket.socket, about: bytes, body: bytes) -> None:
    try:
        hello = sock.recv(frames.HEAD.size + 32)[frames.HEAD.size :]
        mine = bytes(32)
        proof = frames._proof(SECRET.encode(), b"sender", hello + mine + about)
        text = mine + proof + about
        sock.sendall(frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.PROOF, 0, 0, len(text)) + text + body)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    except OSError:
        pass
    finally:
        sock.close()


def greet(path: Path) -> None:
    """A checker that answers a sender with changed frames."""
    ours, theirs = socket.socketpair()
    try:
        theirs.sendall((path / "answers").read_bytes())
        theirs.shutdown(socket.SHUT_WR)
        Channel(ours).greet(SECRET.encode(), session())
    finally:
        ours.close()
        theirs.close()


def watch(path: Path) -> None:
    _run("watch", [str(path)], None)
    _run("watch", ["export", str(path), "--csv", "-o", str(path / "out")], None)
    _run("watch", ["compare", str(path), str(path)], None)


def view_watched(path: Path) -> None:
    _run("view", [str(path), "--export", str(path / "page.html")], None)


def make_targets(root: Path) -> list[Target]:
    return [*_graphs(root), _asynchronous(root / "async"), *_online(root), *_watched(root / "watch")]


def _graphs(root: Path) -> list[Target]:
    graph = root / "graph"
    place = graph / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    (graph / "rank_0" / "graphs").mkdir()
    (place / "statistic.csv").write_text(
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Count\n"
        'Add,Default_Add-op0,0,0,100,output,0,16,Float32,"(2,2)",3,-1,4\n'
    )
    np.save(place / "Add.Default_Add-op0.0.0.5.output.0.DefaultFormat.npy", np.ones((2, 2), np.float32))
    ir = graph / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir"
    ir.write_text(
        "subgraph @0_net() {\n"
        "  %0(a) = Add(%para1_x, %para2_y) {instance name: add} primitive_attrs: {visited: true}\n"
        "      : (<Tensor[Float32], (2, 2)>, <Tensor[Float32], (2, 2)>) -> (<Tensor[Float32], (2, 2)>)\n"
        "      : (<Float32xDefaultFormat[const vector][2, 2]>) -> (<Float16xDefaultFormat[const vector][2, 2]>)\n"
        "      # Fullname with scope: (Default/Add-op0)\n"
        "      # In file /home/me/net.py:7, 11~24/    return x + y/\n"
        "  Return(%0)\n}\n"
    )
    model = message_class("graph_ir.proto", "Model")()
    node = model.graph.node.add()
    node.name, node.op_type, node.full_name, node.source_address = "1", "Add", "Default/Add-op0", "In file a.py:7"
    node.input.add().name = "x"
    model.graph.parameters.add().name = "x"
    message = root / "graph.pb"
    message.write_bytes(model.SerializeToString())
    return [
        Target("graph", read_graph, graph, *(path for path in graph.rglob("*") if path.is_file())),
        Target("graph.pb", lambda path: parse_pb(path.read_bytes()), message, message, refusals=(ValueError,)),
    ]


def _asynchronous(root: Path) -> Target:
    data = np.arange(32, dtype=np.float16).tobytes()
    (root / "in").mkdir(parents=True)
    file = root / "in" / "Add.Default_Add-op1.0.0.100"
    file.write_bytes(
        dump_file(
            inputs=[(op_input(2, 2, [2, 16], len(data)), data)],
            outputs=[(op_output(2, 3, [1, 1, 1, 2, 16], len(data), [1, 16, 1, 2], 0), data)],
            buffers=[b"1234"],
        )
    )
    return Target("asynchronous dump", convert, root, file)


def _online(root: Path) -> list[Target]:
    for name in ("parcel", "shared/000000000000.parcel", "peer", "checker"):
        (root / name).mkdir(parents=True)
    one = root / "parcel" / "parcel"
    one.write_bytes(parcel_of([["a.pt", 3], ["b.pt", 2]], b"abcde"))
    shared = root / "shared" / "000000000000.parcel"
    text = parcel_of([["a.pt", 3], ["b.pt", 2]])
    (shared / "call.json").write_bytes(text[parcel.LENGTH.size :])
    (shared / "0").write_bytes(b"abc")
    (shared / "1").write_bytes(b"de")
    about, frame = root / "peer" / "about", root / "peer" / "frame"
    about.write_text(json.dumps({"session": session().name, "rank": 0}))
    frame.write_bytes(frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.CALL, 0, 0, 6) + b"abcdef" + bytes(32))
    answers = root / "checker" / "answers"
    wishes = json.dumps({"wanted": True, "white_list": [], "black_list": []}).encode()
    hello = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.HELLO, 0, 0, 32) + bytes(32)
    welcome = frames.HEAD.pack(frames.MAGIC, frames.VERSION, frames.WELCOME, 0, 1, 32 + len(wishes)) + bytes(32)
    answers.write_bytes(hello + welcome + wishes)
    return [
        Target("parcel", read_parcel, root / "parcel", one, refusals=NETWORK),
        Target("parcel in a shared directory", read_shared, root / "shared", shared / "call.json", refusals=NETWORK),
        Target("frames to the checker", hear, root / "peer", about, frame, refusals=NETWORK),
        Target("frames to the sender", greet, root / "checker", answers, refusals=NETWORK),
    ]


def _watched(root: Path) -> list[Target]:
    """A finished run, and one that is being written: its last steps are in the file beside it."""
    finished, living = root / "finished", root / "living"
    _write_watched(finished).close()
    store = _write_watched(root / "source")
    living.mkdir()
    for path in (root / "source").iterdir():
        (living / path.name).write_bytes(path.read_bytes())
    store.close()
    beside = [living / f"watch.sqlite{suffix}" for suffix in ("-wal", "-shm")]
    crashed = root / "crashed"
    _write_watched(crashed).close()
    (crashed / "watch.sqlite-journal").write_bytes(JOURNAL)
    journal = [crashed / "watch.sqlite", crashed / "watch.sqlite-journal"]
    return [
        Target("watched run", watch, finished, finished / "watch.sqlite", restores=True, weight=2),
        Target("watched run, side files", watch, living, living / "watch.sqlite", *beside, restores=True, weight=2),
        Target("watched run, crashed", watch, crashed, *journal, restores=True, refusals=(DumpError,)),
        Target("watched run, view", view_watched, finished, finished / "watch.sqlite", restores=True),
    ]


def _write_watched(root: Path) -> Store:
    store = Store(root / "watch.sqlite", {"framework": "pytorch"}, 1 << 30, None)
    store.add([(Watched("grad", f"layer{n}", n), ("norm", "max", "nan")) for n in range(3)])
    for step in range(3):
        alarms = [Alarm(step, "nan", "grad", "layer1", "…", position=1)] if step == 2 else []
        store.write(step, np.full(9, float(step)), alarms)
    return store
