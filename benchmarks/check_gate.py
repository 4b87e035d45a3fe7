"""False alarms and hits of `msprobe check`: repeated clean runs, and one-line faults planted in small training scripts.

    python benchmarks/check_gate.py [--clean N] [--faults N | --first N --faults N] [--baselines DIR]

Each run is a forked process that collects as `msprobe check` does; forking saves the imports. Clean runs are
repeated, half of them with one thread and half with two, and are checked with the default tolerance. A fault replaces
one text of a script. It is named rightly if the call, the module or the sentence has the expected words.

--baselines DIR keeps the baselines there and uses those that are there: save them with one version of PyTorch
(`--clean 0 --faults 0`), then run the same command with a different one.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch._dynamo  # an optimizer imports it: here once, not in each run

import msprobe.pytorch  # noqa: F401 for the same reason
from msprobe.baseline import Baseline, Store
from msprobe.baseline.machine import machine_of
from msprobe.baseline.result import CheckResult, check_dump
from msprobe.cli.run import collect_here
from msprobe.dump.reader import open_dump

LOOP = """
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
for step in range(2):
    x, y = data()
    loss = F.cross_entropy(model(x), y, reduction="mean")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
    optimizer.step()
    optimizer.zero_grad()
"""
HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
BLOCKS = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        x = x + self.out(torch.softmax(scores, dim=-1) @ v)
        return x + self.down(F.gelu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))

def data():
    return torch.randint(0, 50, (4, 8)), torch.randint(0, 5, (4,))
"""
IMAGES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, stride=1, padding=1)
        self.norm = nn.BatchNorm2d(8, eps=1e-5, momentum=0.1)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x):
        h = F.relu(self.norm(self.one(x)))
        h = h + torch.tanh(self.two(h))
        h = F.leaky_relu(self.pool(h), negative_slope=0.01)
        return self.head(h.flatten(1))

def data():
    return torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
"""
SEQUENCES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.cell = nn.GRUCell(12, 12)
        self.gate = nn.Linear(12, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        h = torch.zeros(x.shape[0], 12)
        for place in range(x.shape[1]):
            h = self.cell(self.embed(x[:, place]), h)
            h = h * torch.sigmoid(self.gate(h))
        return self.head(F.normalize(h, dim=-1, eps=1e-12))

def data():
    return torch.randint(0, 30, (4, 5)), torch.randint(0, 5, (4,))
"""
SCRIPTS = {name: HEAD + text + LOOP for name, text in
           {"blocks": BLOCKS, "images": IMAGES, "sequences": SEQUENCES}.items()}  # fmt: skip


class Fault(NamedTuple):
    script: str
    old: str
    new: str
    words: tuple[str, ...]
    """One of them must be in the call, its module or the sentence."""


def _everywhere(old: str, new: str, *words: str) -> list[Fault]:
    return [Fault(script, old, new, words) for script in SCRIPTS]


FAULTS = [
    *_everywhere("lr=1e-3", "lr=2e-3", "lr"),
    *_everywhere("betas=(0.9, 0.999)", "betas=(0.9, 0.99)", "beta"),
    *_everywhere("weight_decay=0.01", "weight_decay=0.1", "weight_decay"),
    *_everywhere("max_norm=0.5", "max_norm=0.25", "clip", "max_norm", "norm"),
    *_everywhere('reduction="mean"', 'reduction="sum"', "cross_entropy"),
    *_everywhere("loss.backward()", "(loss * 1.01).backward()", "__mul__", "mul", "backward"),
    *_everywhere("torch.optim.AdamW", "torch.optim.Adam", "Adam", "weight_decay", "optimizer"),
    *_everywhere("    optimizer.zero_grad()", "    pass", "zero_grad", "gradient"),
    *_everywhere("torch.manual_seed(0)", "torch.manual_seed(1)", "weight", "parameter"),
    *_everywhere("model(x), y,", "model(x), y.flip(0),", "cross_entropy", "flip", "input"),
    *_everywhere("model(x), y,", "model(x) * 1.001, y,", "mul", "cross_entropy"),
    *_everywhere("model(x), y,", "model(x), y, label_smoothing=0.01,", "cross_entropy"),
    Fault("blocks", "eps=1e-5", "eps=1e-4", ("layer_norm", "LayerNorm")),
    Fault("blocks", "** -0.5", "** -0.49", ("mul", "pow")),
    Fault("blocks", "F.gelu(self.up(x))", 'F.gelu(self.up(x), approximate="tanh")', ("gelu",)),
    Fault("blocks", "F.gelu", "F.silu", ("gelu", "silu")),
    Fault("blocks", "scores, dim=-1", "scores, dim=-2", ("softmax",)),
    Fault("blocks", "x.mean(dim=1)", "x.sum(dim=1)", ("mean", "sum")),
    Fault("blocks", "@ v)", "@ v.detach())", ("detach", "gradient", "matmul", "linear", "chunk")),
    Fault("blocks", "self.qkv(self.norm(x))", "self.qkv(x)", ("norm", "linear", "qkv")),
    Fault("blocks", "return x + self.down", "return x - self.down", ("sub", "add")),
    Fault("images", "eps=1e-5", "eps=1e-3", ("batch_norm", "BatchNorm")),
    Fault("images", "momentum=0.1", "momentum=0.2", ("batch_norm", "BatchNorm", "running", "buffer")),
    Fault("images", "negative_slope=0.01", "negative_slope=0.02", ("leaky_relu",)),
    Fault("images", "torch.tanh", "torch.sigmoid", ("tanh", "sigmoid")),
    Fault("images", "nn.AvgPool2d(2)", "nn.MaxPool2d(2)", ("pool",)),
    Fault("images", "h = h + torch", "h = h * 0.999 + torch", ("mul", "add")),
    Fault("images", "torch.randn(4, 3, 8, 8)", "torch.rand(4, 3, 8, 8)", ("input", "conv2d", "weight", "batch")),
    Fault("sequences", "dim=-1, eps", "dim=0, eps", ("normalize", "norm", "vector", "div", "clamp")),
    Fault("sequences", "torch.sigmoid", "torch.tanh", ("sigmoid", "tanh")),
    Fault("sequences", "torch.zeros(x", "torch.ones(x", ("gru", "GRU", "cell", "ones", "zeros")),
    Fault("sequences", "h = h * torch", "h = h + torch", ("mul", "add")),
    Fault("sequences", "self.embed(x[:, place])", "self.embed(x[:, -1 - place])", ("embed", "getitem", "Embedding")),
    Fault("sequences", "nn.GRUCell(12, 12)", "nn.GRUCell(12, 12, bias=False)", ("gru", "GRU", "cell", "bias")),
    Fault("blocks", "nn.Linear(16, 5)", "nn.Linear(16, 5, bias=False)", ("linear", "head", "bias")),
    Fault("blocks", "x.mean(dim=1)", "x.mean(dim=1).bfloat16().float()", ("bfloat16", "head", "linear")),
]


def collect(script: Path, directory: Path, threads: int) -> Path:
    """Runs a script in a forked process; returns its dump."""
    directory.mkdir(parents=True)
    config = directory / "config.json"
    settings = {"task": "statistics", "level": "mix", "dump_path": str(directory / "dump"), "step": [0, 1]}
    config.write_text(json.dumps({**settings, "statistics": {"summary_mode": "md5"}}))
    child = os.fork()
    if not child:
        code = 1
        try:
            torch.set_num_threads(threads)
            collect_here(str(config))
            runpy.run_path(str(script), run_name="__main__")
            from msprobe.pytorch import PrecisionDebugger

            current = PrecisionDebugger._current
            if current is not None:
                current._lifecycle.close()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{script} failed")
    return directory / "dump"


def save(store: Store, name: str, dump: Path, root: Path) -> None:
    machine = machine_of(open_dump(dump).ranks[0].run)
    store.save(Baseline(name, machine, ["python"], None, "", "", True, [0, 1], None, 0, None, ""), dump, root)


def is_right(fault: Fault, result: CheckResult) -> bool:
    if result.answer.passed:
        return False
    place = result.answer.place
    named = [result.answer.sentence, *((place.call, place.module or "") if place is not None else ())]
    return any(word in text for word in fault.words for text in named)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first fault")
    parser.add_argument("--faults", type=int, default=None)
    parser.add_argument("--baselines", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        store = Store(args.baselines or root / "baselines")
        for name, text in SCRIPTS.items():
            (root / f"{name}.py").write_text(text)
            if not (store.directory / name).exists():
                save(store, name, collect(root / f"{name}.py", root / f"saved_{name}", 2), root)
        alarms = 0
        for number in range(args.clean):
            name = list(SCRIPTS)[number % len(SCRIPTS)]
            dump = collect(root / f"{name}.py", root / f"clean{number}", 1 + number % 2)
            result = check_dump(store, name, dump, root / f"golden_clean{number}")
            word = "clean" if result.answer.passed else "false alarm"
            alarms += not result.answer.passed
            print(f"{word}: {name}, {1 + number % 2} threads: {result.answer.sentence}", flush=True)
        print(f"{alarms} false alarms in {args.clean} clean runs", flush=True)
        print_faults(root, store, FAULTS[args.first :][: args.faults])
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")


def print_faults(root: Path, store: Store, chosen: list[Fault]) -> None:
    right = 0
    for number, fault in enumerate(chosen):
        text = SCRIPTS[fault.script]
        if text.count(fault.old) < 1:
            raise SystemExit(f"{fault.old!r} is not in {fault.script}")
        script = root / f"fault{number}.py"
        script.write_text(text.replace(fault.old, fault.new, 1))
        dump = collect(script, root / f"fault{number}", 2)
        result = check_dump(store, fault.script, dump, root / f"golden_fault{number}")
        good = is_right(fault, result)
        right += good
        said = f"{result.answer.verdict}: {result.answer.sentence}"
        print(f"{'right' if good else 'wrong'}: {fault.script}: {fault.old!r} -> {fault.new!r}: {said}", flush=True)
    print(f"{right} of {len(chosen)} planted faults named rightly", flush=True)


if __name__ == "__main__":
    main()
