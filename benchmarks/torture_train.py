"""Training runs for torture.py: `python torture_train.py KIND OUT DUMP`, bare where DUMP is "-".

After each step a line with the SHA-256 of all weights goes to OUT: equal lines are runs that are equal to the last bit.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn
from torture_odd import fork_in_step, make_read_only, train_with_every_task

STEPS = 5
CALL = struct.Struct("<dII")
"""The time at which a call had returned, its step and its number."""


class Data(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        return torch.tanh(torch.full((16,), float(index)))


class Training:
    """A small model, its optimizer and, unless the run is bare, a debugger."""

    def __init__(self, out: Path, dump: str, **settings: Any) -> None:
        self.out, self.dump, self.debugger = out, dump, None
        if dump != "-":
            from msprobe.pytorch import PrecisionDebugger

            self.debugger = PrecisionDebugger(dump_path=dump, **{"task": "statistics", "level": "mix", **settings})
        torch.manual_seed(0)
        self.models = [self.build()]
        self._file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))
        return model, torch.optim.AdamW(model.parameters())

    def learn(self, which: int, batch: Any) -> None:
        model, optimizer = self.models[which]
        # Not ASCII: é ☃. These lines become part of source.json, with any locale.
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def step(self, number: int, work: Callable[[], object]) -> None:
        if self.debugger is not None:
            self.debugger.start(self.models[0][0])
        work()
        if self.debugger is not None:
            self.debugger.stop()
            self.debugger.step()
        digest = hashlib.sha256()
        for model, _ in self.models:
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
        os.write(self._file, f"{number} {digest.hexdigest()[:32]}\n".encode())


def batch_of(step: int) -> Any:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(step))


def steady(training: Training, harm: Callable[[int], object] = lambda step: None, steps: int = STEPS) -> None:
    """`harm` is done in each step, between two passes of the model."""
    for step in range(steps):

        def work(step: int = step) -> None:
            training.learn(0, batch_of(step))
            harm(step)
            training.learn(0, batch_of(step + 100))

        training.step(step, work)


def send(number: int) -> Callable[[int], object]:
    def harm(step: int) -> None:
        if step == 2:
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    return harm


def remove(training: Training) -> Callable[[int], object]:
    return lambda step: shutil.rmtree(training.dump, ignore_errors=True) if step == 2 else None


def take_descriptors(training: Training) -> Callable[[int], object]:
    taken: list[int] = []

    def harm(step: int) -> None:
        if step == 1:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        if step == 3:
            for descriptor in taken:
                os.close(descriptor)

    return harm


def busy(training: Training, calls: int = 200) -> None:
    """Runs until it is killed; says of each call when it had returned."""
    log = os.open(f"{training.out}.calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    x = torch.ones(64)
    for step in range(10_000):

        def work(step: int = step) -> None:
            training.learn(0, batch_of(step))
            for number in range(calls):
                torch.sin(x)
                os.write(log, CALL.pack(time.monotonic(), step, number))

        training.step(step, work)


def many_calls(training: Training) -> None:
    x = torch.ones(8)

    def work() -> None:
        for _ in range(200_000):
            torch.sin(x)

    training.step(0, work)


def large_tensor(training: Training) -> None:
    x = torch.arange(1 << 29, dtype=torch.int32)
    training.step(0, lambda: torch.sum(x))


def many_steps(training: Training, steps: int = 10_000) -> None:
    """Writes the memory in use every hundred steps, after a garbage collection."""
    with Path(f"{training.out}.memory").open("w") as file:
        for step in range(steps):
            training.step(step, lambda step=step: training.learn(0, batch_of(step)))  # type: ignore[misc]
            if step % 100 == 99:
                gc.collect()
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                print(step, pages * resource.getpagesize(), file=file)


def threads(training: Training) -> None:
    training.models += [training.build() for _ in range(3)]
    for step in range(STEPS):

        def work(step: int = step) -> None:
            started = [
                threading.Thread(target=training.learn, args=(n, batch_of(step + 100 * n)))
                for n in range(len(training.models))
            ]
            for one in started:
                one.start()
            for one in started:
                one.join()

        training.step(step, work)


def spawned(step: int) -> None:
    torch.tanh(torch.full((4,), float(step)))


def processes(training: Training) -> None:
    """Workers are forked, and other processes spawned, while steps are collected."""
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for step, batch in enumerate(loader):

        def work(step: int = step, batch: Any = batch) -> None:
            if step < 2:
                process = multiprocessing.get_context("spawn").Process(target=spawned, args=(step,))
                process.start()
                process.join()
            training.learn(0, batch)

        training.step(step, work)


def read_only(training: Training) -> None:
    """From step 2 on, nothing can be written. Between two steps: a file that is open for writing keeps it writable."""

    def harm(step: int) -> None:
        if step == 2 and training.debugger is not None:
            make_read_only(str(Path(training.dump).parent))

    for step in range(STEPS):
        harm(step)
        training.step(step, lambda step=step: [training.learn(0, batch_of(n)) for n in (step, step + 100)])


def ranks(training: Training) -> None:
    """Two ranks; rank 1 is killed in step 2, between the forward and the sum of the gradients."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{training.out}.store", rank=rank, world_size=2)

    def harm(step: int) -> None:
        if rank == 1 and step == 2 and training.debugger is not None:
            time.sleep(1.0)  # what is older than half a second must be there
            os.kill(os.getpid(), signal.SIGKILL)
        for parameter in training.models[0][0].parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= 2

    steady(training, harm)


def main() -> None:
    kind, out, dump = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    if kind == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs without it
    settings = {"large tensor": {"task": "tensor", "level": "L1"}, "many calls": {"level": "L1"}}.get(kind, {})
    if kind in ("odd tensors", "odd names"):
        train_with_every_task(out, dump, kind)
        return
    training = Training(out, dump, **settings)
    kinds: dict[str, Callable[[], None]] = {
        "SIGTERM": lambda: steady(training, send(signal.SIGTERM)),
        "SIGINT": lambda: steady(training, send(signal.SIGINT)),
        "removed": lambda: steady(training, remove(training)),
        "descriptors": lambda: steady(training, take_descriptors(training)),
        "busy": lambda: busy(training),
        "many calls": lambda: many_calls(training),
        "large tensor": lambda: large_tensor(training),
        "many steps": lambda: many_steps(training),
        "threads": lambda: threads(training),
        "processes": lambda: processes(training),
        "ranks": lambda: ranks(training),
        "fork": lambda: steady(training, fork_in_step),
        "read-only": lambda: read_only(training),
    }
    kinds.get(kind, lambda: steady(training))()
    if kind in ("full disk", "read-only") and dump != "-":  # its file system goes with this process
        shutil.copytree(dump, f"{out}.dump")


if __name__ == "__main__":
    main()
