"""What torture_train.py trains in odd situations: odd tensors on every task, odd names, a clock that goes backwards."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

TASKS = {
    "structure": {"task": "structure"},
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
    "tensor": {"task": "tensor"},
    "overflow_check": {"task": "overflow_check"},
    "free_benchmark": {"task": "free_benchmark", "free_benchmark": {"handler_type": "check"}},
}
LEVELS = {"overflow_check": ("L1", "mix"), "free_benchmark": ("L1",)}
NAMES = (
    "n" * 300,
    "a/b/../../c",
    "..",
    "dump.json",
    "line\nbreak\r\x1b[31m",
    "emoji \N{SNOWMAN}\N{PILE OF POO}",
    "\udcff",
    "journal",
    "stack",
    "__proto__",
    "::error ::x",
    '"}],"x":[{"',
    "Module",
    "forward 0",
    " ",
)
"""Of modules: long, with slashes, control characters, no text at all, like names of ours."""


class Marked(torch.Tensor):
    """A subclass that counts the functions that are called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Marked.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class OddTensors(nn.Module):
    """Each kind of tensor that has no plain memory of floats, on its way through a few calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.low = nn.Linear(16, 16), nn.Linear(16, 16, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False)
        x = x + self.low(x.bfloat16()).float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x.mean() + sum(part.float().mean() for part in odd_values(x))


def odd_values(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield torch.sparse.mm(x.detach().relu().to_sparse(), x.t()).sum(0)
    yield (x.to_sparse_csr() @ x.t()).sum(0)
    nested = torch.nested.nested_tensor([x[:3].detach(), x[3:].detach()])
    yield torch.nested.to_padded_tensor(nested * 2, 0.0)
    jagged = torch.nested.nested_tensor([x[:3].detach(), x[3:].detach()], layout=torch.jagged)
    yield torch.sin(jagged).values()
    yield torch.quantize_per_tensor(x.detach(), 0.1, 10, torch.qint8).dequantize()
    yield torch.fft.ifft(torch.fft.fft(x) * 1j).imag
    yield torch.view_as_complex(x.reshape(8, 8, 2)).conj().imag
    yield (x.detach().as_subclass(Marked) * 2 + 1).as_subclass(torch.Tensor)  # type: ignore[arg-type]
    shape = torch.empty(4, 5, device="meta").matmul(torch.empty(5, 6, device="meta")).shape
    yield torch.full((1,), float(sum(shape)))
    yield x.detach().to(torch.float8_e4m3fn).float()
    yield torch.empty(0, 3).sum(1).new_zeros(1)
    yield x[:, :1].expand(8, 1000).mean(1)
    yield torch.func.vmap(torch.sin)(x.detach())
    yield torch.masked_select(x, x > 0).mean().reshape(1)


class OddNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self._modules[name] = nn.Linear(16, 16)  # add_module refuses dots

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = torch.tanh(module(x))
        return x


def train_with_every_task(out: Path, dump: str, kind: str) -> None:
    """Three steps with each task and level. A line of OUT per task, level and step: the weights, and what the subclass
    has counted."""
    from msprobe.pytorch import PrecisionDebugger

    lines = []
    for task, settings in TASKS.items():
        for level in LEVELS.get(task, ("L0", "L1", "L2", "mix") if task != "structure" else ("L0", "L1", "mix")):
            torch.manual_seed(0)
            model: nn.Module = OddTensors() if kind == "odd tensors" else OddNames()
            optimizer = torch.optim.AdamW(model.parameters())
            debugger: Any = None
            if dump != "-":
                config = Path(f"{out}.{task}.{level}.json")
                write_config(config, {**settings, "level": level, "dump_path": f"{dump}/{task}_{level}"})
                debugger = PrecisionDebugger(config_path=str(config))
            for step in range(3):
                if debugger is not None:
                    debugger.start(model)
                batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if debugger is not None:
                    debugger.stop()
                    debugger.step()
                lines.append(f"{task} {level} {step} {digest(model)}")
    out.write_text("\n".join(lines) + "\n")


def write_config(path: Path, config: dict[str, Any]) -> None:
    import json

    path.write_text(json.dumps(config))


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().float().numpy().tobytes())
    return found.hexdigest()[:32]


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
static long back;
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*usual)(clockid_t, struct timespec *);
    if (!usual) usual = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = usual(which, at);
    if (which == CLOCK_REALTIME) at->tv_sec -= 3600 * ++back % 1000000000;
    return result;
}
time_t time(time_t *at) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now); if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now; clock_gettime(CLOCK_REALTIME, &now); at->tv_sec = now.tv_sec; at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
"""Each time the time of day is asked, it is an hour earlier than before."""


def compile_clock(directory: Path) -> Path:
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"], check=True)
    return library


def fork_in_step(step: int) -> None:
    """The child computes and leaves: at once in step 1, in step 2 with an exception through all frames."""
    if step not in (1, 2):
        return
    child = os.fork()
    if not child:
        nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        if step == 1:
            os._exit(0)
        sys.exit(0)
    os.waitpid(child, 0)


def make_read_only(path: str) -> None:
    """The file system of `path`, in this process' own mount namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    read_only, again = 1, 32
    if library.mount(b"none", os.fsencode(path), None, again | read_only, None):
        raise OSError(ctypes.get_errno(), "remount")
