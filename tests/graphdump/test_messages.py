"""What the worker receives from the training: complete lines, steps by time, and the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msprobe.graphdump.dumping.messages import Messages, Steps
from msprobe.graphdump.dumping.staging import StagedFile
from msprobe.graphdump.files.names import parse_tensor


def staged(moment: int, file: str = "") -> StagedFile:
    original = f"Add.Default_Add-op0.0.0.{moment}.output.0.DefaultFormat.Int32.npy"
    name = parse_tensor(original)
    assert name is not None
    return StagedFile(Path("x"), file or original, original, name, 0, 1, 77, 8)


def test_a_file_belongs_to_the_step_in_whose_time_it_was_written():
    steps = Steps()
    steps.end(5)  # nothing is open
    assert steps.place(staged(10)) is None
    steps.begin(3, 10)
    steps.end(20)
    steps.begin(3, 30)  # stop and start again in one step
    steps.end(40)
    steps.begin(7, 50)
    wanted = {9: None, 10: 3, 20: 3, 21: None, 29: None, 30: 3, 40: 3, 41: None, 50: 7, 999: 7}
    found = {moment: steps.place(staged(moment)) for moment in wanted}
    assert {moment: one and one.iteration for moment, one in found.items()} == wanted
    short = steps.place(staged(55, "3.npy"))  # the framework gives 3.npy to another tensor in its next iteration
    assert short is not None
    assert len(short.file) == 36


def test_messages_come_in_pieces_and_the_end_of_the_pipe_is_the_end():
    reading, writing = os.pipe()
    messages = Messages(reading)
    os.write(writing, b'{"job": 1}\n{"step": 4, ')
    assert json.loads(messages.first()) == {"job": 1}
    messages.read()
    assert messages.steps.place(staged(100)) is None
    os.write(writing, b'"at": 100}\n')
    messages.read()
    one = messages.steps.place(staged(100))
    assert one is not None
    assert one.iteration == 4
    os.write(writing, b'{"at": 110}\n{"failed": "Cholesky"}\n')
    os.close(writing)
    messages.read(1.0)
    assert messages.steps.place(staged(111)) is None
    assert (messages.failure, messages.ended) == ("Cholesky", True)
    os.close(reading)
