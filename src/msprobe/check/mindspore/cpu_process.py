"""Runs the golden side in a separate process, if the device under test is not the CPU.

A MindSpore process has one device. The records and arrays of a call go to the other process and its results come back,
as JSON and bytes.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from multiprocessing.connection import Connection
from typing import Any, Optional

import numpy as np

from msprobe.check.core.framework import Call, Framework, Results
from msprobe.stats import dtypes
from msprobe.system.processes import python_command, python_environment

Array = np.ndarray[Any, Any]


class CpuProcess:
    """The other process. It starts when it is first needed, and again after it has died. It ends with this process."""

    def __init__(self) -> None:
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._pipe: Any = None

    def ask(self, question: dict[str, Any], arrays: list[Any]) -> Results:
        """Raises RuntimeError with the error of the other process."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send_bytes(json.dumps(question).encode())
            _send(self._pipe, arrays)
            answer = json.loads(self._pipe.recv_bytes())
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return Results(_receive(self._pipe), _receive(self._pipe), **answer)
        except (EOFError, OSError):
            self.close()
            raise RuntimeError("the golden process has ended") from None

    def close(self) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from msprobe.check.mindspore.cpu_process import main; main({theirs.fileno()})"
            self._process = subprocess.Popen(
                python_command(code),
                pass_fds=[theirs.fileno()],
                env=python_environment(),
                stdin=subprocess.DEVNULL,
            )
        self._pipe = Connection(ours.detach())


class CallWithGoldenProcess:
    """A call on the device of this process. The other process runs its golden side."""

    def __init__(self, call: Call, cpu: CpuProcess, records: dict[str, Any]) -> None:
        self._call, self._cpu, self._records = call, cpu, records
        self.api, self.tensors, self.incoming = call.api, call.tensors, call.incoming
        self.first_only = call.first_only

    def run(self, device: str) -> Results:
        return self._call.run(device)

    def golden(self) -> Results:
        return self._cpu.ask({**self._records, "moved": None}, [*self.tensors, *self.incoming])

    def moved(self, number: int, epsilon: float, within: bool) -> Results:
        return self._cpu.ask({**self._records, "moved": [number, epsilon, within]}, [])


def main(handle: int) -> None:
    """The main function of the other process. A request with changed inputs follows the golden request of its call."""
    from msprobe.check.mindspore.framework import MindSpore

    pipe: Any = Connection(handle)
    framework = MindSpore()
    framework.prepare_process("cpu")
    last: list[Call] = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = json.loads(pipe.recv_bytes())
            arrays = _receive(pipe)
            try:
                results = _answer(framework, question, arrays, last)
            except Exception as error:
                pipe.send_bytes(json.dumps({"error": f"{type(error).__name__}: {str(error).strip()}"[:300]}).encode())
                continue
            flags = {key: value for key, value in results._asdict().items() if key not in ("outputs", "gradients")}
            pipe.send_bytes(json.dumps(flags).encode())
            _send(pipe, results.outputs)
            _send(pipe, results.gradients)


def _answer(framework: Framework, question: dict[str, Any], arrays: list[Any], last: list[Call]) -> Results:
    if question["moved"] is not None:
        return last[0].moved(*question["moved"])
    given = iter([one for one in arrays if one is not None])
    records = (question["title"], question["name"], question["forward"], question["backward"])
    last[:] = [framework.call(*records, lambda item: next(given))]
    return last[0].golden()


def _send(pipe: Any, arrays: list[Any]) -> None:
    heads = [None if one is None else [_row(one).name, list(one.shape)] for one in arrays]
    pipe.send_bytes(json.dumps(heads).encode())
    for one in arrays:
        if one is not None:
            pipe.send_bytes(np.ascontiguousarray(one).reshape(-1).view(np.uint8))


def _receive(pipe: Any) -> list[Any]:
    found: list[Any] = []
    for head in json.loads(pipe.recv_bytes()):
        if head is None:
            found.append(None)
        else:
            raw = np.frombuffer(bytearray(pipe.recv_bytes()), np.uint8)
            found.append(raw.view(dtypes.BY_NAME[head[0]].numpy_dtype).reshape(head[1]))
    return found


def _row(array: Array) -> dtypes.Dtype:
    row = dtypes.of_numpy(array.dtype)
    if row is None:
        raise RuntimeError(f"arrays of type {array.dtype} cannot be sent to the golden process")
    return row
