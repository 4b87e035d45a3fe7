"""graph, watch and convert on a terminal of 80 columns: the answer first and bold, no line wider, right plurals."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main
from msprobe.graphdump.files.schema import message_class
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.store import Store
from msprobe.watch.targets import Target

LAYER = "decoder.layers.11.self_attention.projection_of_the_output.weight"
OPERATOR = "Default/network-TrainOneStepCell/network-WithLossCell/_backbone-Net/Exp-op0"


def watched(path: Path) -> list[str]:
    store = Store(path / "watch.sqlite", {"framework": "pytorch", "rank": None}, 1 << 30, None)
    store.add([(Target("grad", LAYER, 0), ("norm",))])
    around = [(step, 1e10 * step) for step in range(5)]
    sentence = "has 17 NaN, the first target of this step in the order of the forward pass"
    store.write(0, np.full(1, np.nan), [Alarm(0, "nan", "grad", LAYER, sentence, position=0, around=around)])
    store.close()
    return ["watch", str(path)]


def graph(path: Path) -> list[str]:
    place = path / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    name = f"Exp.{OPERATOR.replace('/', '_')}.0.0.1623124369613540"
    np.save(place / f"{name}.input.0.DefaultFormat.Float32.npy", np.full(4, 100, np.float32))
    np.save(place / f"{name}.output.0.DefaultFormat.Float32.npy", np.full(4, np.inf, np.float32))
    return ["graph", "check", str(path)]


def converted(path: Path) -> list[str]:
    message = message_class("dump_data.proto", "DumpData")()
    message.output.add(data_type=1, format=0, size=96).shape.dim.extend([1, 2, 3, 4])
    header = message.SerializeToString()
    (path / f"Exp.{OPERATOR.replace('/', '_')}.2.3.1623124369613540").write_bytes(
        struct.pack("<Q", len(header)) + header
    )
    return ["convert", "-d", str(path), "-out", str(path / "out")]


def on_a_terminal(words: list[str]) -> str:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "msprobe", *words], stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(controller)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (watched, r"First: step 0, rank 0,"),
        (graph, r"1 finding, the first: overflow in"),
        (converted, r"1 file: 0 tensors written, 1 file failed"),
    ],
)
def test_the_answer_is_first_and_bold_and_no_line_is_wider_than_the_terminal(tmp_path, capsys, make, answer):
    words = make(tmp_path)
    main(words)
    piped = capsys.readouterr()
    assert re.match(answer, piped.out), piped.out
    shown = on_a_terminal(words)
    assert re.match(r"\x1b\[1m" + answer, shown), shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 80
    assert not re.search(r"\b1 (ranks|steps|targets|findings|tensors|files)\b", plain)
