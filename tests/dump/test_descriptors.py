"""A script that closes every descriptor, and then opens files of its own under the same numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from msprobe.dump.reader import open_dump
from msprobe.dump.tensor_files.codec import Payload
from msprobe.dump.writing.writer import Head, RankWriter, Worker


def saved(writer: RankWriter, name: str, value: float) -> None:
    data = np.full(3, value, np.float32)
    writer.tensor(name, Payload("float32", (3,), data.view(np.uint8), "npy", borrowed=True))


def test_the_scripts_files_are_left_alone_and_nothing_is_lost(tmp_path: Path) -> None:
    logged: list[str] = []
    worker = Worker(log=logged.append)
    writer = RankWriter(tmp_path / "step0" / "rank", Head("tensor", "L1", "pytorch", "x"), worker)
    writer.record("Torch.relu.0.forward", None, None, '"output": []')
    saved(writer, "a", 1)
    writer.flush()
    assert writer._fd is not None
    assert writer._store._fd is not None
    numbers = (writer._fd.number, writer._store._fd.number)
    for number in numbers:
        os.close(number)
    own = {number: tmp_path / f"own{number}" for number in numbers}
    for number, path in own.items():
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        if opened != number:
            os.close(opened)
    writer.record("Torch.relu.1.forward", None, None, '"output": []')
    saved(writer, "b", 2)
    writer.finish()
    for number, path in own.items():
        os.write(number, b"mine")  # still open, and still the script's
        os.close(number)
        assert path.read_bytes() == b"mine"
    worker.close()
    rank = open_dump(tmp_path).ranks[0]
    assert list(rank.records) == ["Torch.relu.0.forward", "Torch.relu.1.forward"]
    assert rank.tensor("b.npy").tolist() == [2, 2, 2]
    assert len([line for line in logged if "closed file descriptors" in line]) == 1
