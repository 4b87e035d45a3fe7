"""Two real processes: a training run that sends, a checker that judges, and what comes between them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from online_setup import certificate, free_port, parcel_of, secret_file, session

from msprobe.check.online.inbox import Arrival, Inbox
from msprobe.check.online.shared_directory import Outbox, SharedDirectory
from msprobe.config import load

HERE = Path(__file__).parent
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
PARCELS = 300


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

    def train(self, steps: int, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TRAIN, str(HERE), str(self.path / "train.json"), str(steps)]
        return self._start(command, **environment)

    def check(self) -> subprocess.Popen[str]:
        arguments = ["run_ut", "--online", "-config", str(self.path / "check.json"), "-o", str(self.out)]
        return self._start([sys.executable, "-m", "msprobe", *arguments, "--jobs", "1"])

    def _start(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
        )
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
    logged = finished(second)
    assert training.wait(timeout=60) == 0
    assert second.returncode == 0, logged
    assert f"{4 * CALLS_A_STEP} calls: {4 * CALLS_A_STEP} pass, 0 warning, 0 error" in logged
    found = pair.results()
    assert set(found.values()) == {1}
    assert len(found) == 4 * CALLS_A_STEP
    assert set(before) <= set(found)
    assert not (pair.out / "spool").exists()


def test_an_address_without_a_secret_is_explained_on_both_sides_and_the_training_goes_on(make_pair: Any) -> None:
    """As seed 003 writes it: host and port, and nothing more."""
    address = {"host": "127.0.0.1", "port": free_port()}
    pair = make_pair(address, address)
    for process, code in ((pair.check(), 2), (pair.train(1), 0)):
        logged = finished(process)
        assert process.returncode == code, logged
        assert "The online check over TCP needs secret_file on both sides: a file with at least 16 bytes." in logged
    assert (pair.path / "dump" / "step0" / "rank" / "dump.json").is_file()


def test_a_shared_directory_is_another_way(make_pair: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    pair = make_pair({"nfs_path": str(shared)}, {"nfs_path": str(shared)})
    training = pair.train(2)
    assert training.wait(timeout=60) == 0
    home = shared / f"{'0' * 32}-0"
    home.mkdir()
    (home / "000000000000.parcel").write_bytes(b"garbage, and no directory")
    for number, text in enumerate((b"garbage", parcel_of([["a.pt", 1]])[4:], parcel_of([["a.pt", 5]])[4:]), 1):
        hostile = home / f"{number:012d}.parcel"
        hostile.mkdir()
        (hostile / "call.json").write_bytes(text)
    (home / "000000000002.parcel" / "0").symlink_to(tmp_path / "check.json")
    (home / "000000000003.parcel" / "0").write_bytes(b"four")
    checker = pair.check()
    logged = finished(checker)
    assert checker.returncode == 0, logged
    assert len(pair.results()) == 2 * CALLS_A_STEP
    assert logged.count("was refused") == 4


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make certificates")
def test_tls_carries_the_same(make_pair: Any, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "both")
    address = {"host": "127.0.0.1", "port": free_port(), "secret_file": secret_file(tmp_path)}
    files = {"tls_cert": cert, "tls_key": key, "tls_ca": cert}
    pair = make_pair({**address, **files}, {**address, **files})
    checker = pair.check()
    training = pair.train(1)
    assert training.wait(timeout=60) == 0
    logged = finished(checker)
    assert checker.returncode == 0, logged
    assert len(pair.results()) == CALLS_A_STEP


def test_a_checker_with_a_white_list_gets_only_that(make_pair: Any, tmp_path: Path) -> None:
    address = {"host": "127.0.0.1", "port": free_port(), "secret_file": secret_file(tmp_path)}
    pair = make_pair(address, {**address, "white_list": ["linear"]})
    checker = pair.check()
    training = pair.train(2)
    assert training.wait(timeout=60) == 0
    logged = finished(checker)
    assert checker.returncode == 0, logged
    names = [name for _, name in pair.results()]
    assert names
    assert all(".linear." in name for name in names)


def test_only_the_listed_one_of_two_ranks_is_judged(make_pair: Any, tmp_path: Path) -> None:
    address = {"host": "127.0.0.1", "port": free_port(), "secret_file": secret_file(tmp_path)}
    pair = make_pair(address, {**address, "rank_list": [1]})
    checker = pair.check()
    ranks = [pair.train(1, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    logged = finished(checker)
    assert checker.returncode == 0, logged
    assert "Rank 1 has ended." in logged
    assert [process.wait(timeout=60) for process in ranks] == [0, 0]
    assert {file.parent.name for file in pair.out.glob("*/step*/rank*/accuracy_checking_result_online.csv")} == {
        "rank1"
    }
    assert len(pair.results()) == CALLS_A_STEP


def test_an_answered_parcel_is_not_read_again(tmp_path: Path) -> None:
    """The checker removes parcels while its directory is being listed."""
    root = tmp_path / "shared"
    root.mkdir()
    log: list[str] = []
    file = tmp_path / "run_ut.json"
    file.write_text(json.dumps({"task": "run_ut", "run_ut": {"is_online": True, "nfs_path": str(root)}}))
    inbox = Inbox(tmp_path / "spool", log.append)
    outbox = Outbox(root, session())
    task = {"framework": "pytorch", "call": "Torch.relu.0", "title": "Torch.relu", "step": 0}
    parcel = {**task, "forward": {}, "backward": None}
    settings: Any = load("pytorch", file, task="run_ut").section
    reader = SharedDirectory(settings, inbox)

    def send() -> None:
        for _ in range(PARCELS):
            outbox.put(parcel, [], tmp_path)

    sender = threading.Thread(target=send)
    sender.start()
    answered, waiting, deadline = 0, deque[Arrival](), time.monotonic() + 60
    while answered < PARCELS and time.monotonic() < deadline:
        if (arrival := inbox.take()) is not None:
            waiting.append(arrival)
        if waiting and (len(waiting) > 8 or not sender.is_alive()):
            waiting.popleft().answer()
            answered += 1
    sender.join()
    reader.close()
    assert answered == PARCELS
    assert outbox.waiting() == 0
    assert log == []
