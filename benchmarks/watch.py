"""What watching costs a training step, beside the bare step, wandb.watch and a loop of `p.grad.norm().item()`.

python benchmarks/watch.py [--rounds 30] [--only "default;everything"]

All variants live at once, each with its own model, and take turns within one process: one step each a round. The
ratio is taken inside the round, of CPU times (of all threads); the median over the rounds is printed. `bare again`
is a second bare model, measured like a variant: its distance from 1.00 is the noise.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import models
import tables
import torch

EVERYTHING = {"targets": "all", "statistics": "all", "low_precision": "fp16", "alarms": {"underflow": False}}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "default every 10": {"every": 10},
    "everything every 10": {**EVERYTHING, "every": 10},
    "attention_logits": {"targets": ["attention_logits"]},
    "attention_logits, bound only": {"targets": ["attention_logits"], "attention_logits": {"exact_every": 0}},
    "outliers": {"targets": ["outliers"]},
    "quantisation fp8-e4m3": {"targets": ["quantisation"], "quantisation": {"formats": ["fp8-e4m3"], "every": 1}},
    "quantisation mxfp8": {"targets": ["quantisation"], "quantisation": {"formats": ["mxfp8"], "every": 1}},
    "quantisation mxfp8 every 10": {"targets": ["quantisation"]},
}
AIMS = {"default": 1.03, "everything": 1.08, "default every 10": 1.01}
MONITORS: list[Any] = []


class Variant:
    """A model and what is done at the end of each of its steps; both are charged to the step."""

    def __init__(self, name: str, layers: int, attach: Callable[[Any, Any], Callable[[Any], None]]) -> None:
        self.name = name
        self.model, self.train = models.gpt(layers)
        self.finish = attach(self.model, self.train)
        self.cpu: list[float] = []
        self.loss = 0.0

    def step(self) -> None:
        before = time.process_time()
        loss = self.train()
        self.finish(loss)
        self.cpu.append(time.process_time() - before)
        self.loss = float(loss)


def bare(model: Any, train: Any) -> Callable[[Any], None]:
    return lambda loss: None


def watched(config: dict[str, Any]) -> Callable[[Any, Any], Callable[[Any], None]]:
    def attach(model: Any, train: Any) -> Callable[[Any], None]:
        from msprobe.pytorch import Monitor

        monitor = Monitor(model, None, config)
        MONITORS.append(monitor)
        return monitor.step

    return attach


def norm_loop(model: Any, train: Any) -> Callable[[Any], None]:
    parameters = list(model.parameters())

    def finish(loss: Any) -> None:
        for parameter in parameters:
            parameter.grad.norm().item()

    return finish


def wandb_watch(model: Any, train: Any) -> Callable[[Any], None]:
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(prefix="wandb-"), settings=wandb.Settings(silent=True))
    run.watch(model, log="all", log_freq=1)
    return lambda loss: run.log({"loss": float(loss)})


def measure(variants: list[Variant], rounds: int, warmup: int) -> None:
    for number in range(rounds + warmup):
        start = number % len(variants)
        for variant in variants[start:] + variants[:start]:
            variant.step()
        if number + 1 == warmup:
            for variant in variants:
                variant.cpu.clear()


def report(variants: list[Variant], folders: dict[str, Path], rounds: int) -> str:
    reference = variants[0]
    rows = []
    for variant in variants[1:]:
        ratios = [mine / theirs for mine, theirs in zip(variant.cpu, reference.cpu)]
        aim = AIMS.get(variant.name)
        same = "same" if variant.loss == reference.loss else "DIFFERS"
        rows.append([variant.name, f"{statistics.median(ratios):.3f}", f"{_mean(variant, reference):.3f}"])
        rows[-1] += [f"{aim:.2f}" if aim else "-", same, _disk(folders.get(variant.name))]
    head = ["variant", "ratio", "ratio of sums", "aim", "loss", "bytes per number"]
    bare_ms = 1e3 * statistics.median(reference.cpu)
    return f"bare step {bare_ms:.0f} ms CPU, {rounds} rounds\n\n" + tables.table(head, rows)


def _mean(variant: Variant, reference: Variant) -> float:
    """Of sums: the right figure for a variant that works only every few steps."""
    return sum(variant.cpu) / sum(reference.cpu)


def _disk(folder: Path | None) -> str:
    if folder is None:
        return "-"
    from msprobe.watch.reading.run import Run
    from msprobe.watch.store import is_absent

    rank = Run(folder).ranks[0]
    numbers = sum(int((~is_absent(row)).sum()) for row in rank.table(from_step=-1)[2])
    size = sum(path.stat().st_size for path in folder.iterdir() if path.name.endswith("sqlite"))
    return f"{size / numbers:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--only", help="names of variants, separated by semicolons")
    args = parser.parse_args()
    torch.set_num_threads(2)
    work = Path(tempfile.mkdtemp(prefix="msprobe-watch-bench-"))
    makers: dict[str, Any] = {"bare again": bare}
    folders = {name: work / name.replace(" ", "-") for name in CASES}
    makers.update({name: watched({**case, "dump_path": str(folders[name])}) for name, case in CASES.items()})
    makers["p.grad.norm().item() loop"] = norm_loop
    if importlib.util.find_spec("wandb"):
        makers['wandb.watch(log="all")'] = wandb_watch
    else:
        print("Without wandb.watch: wandb is not installed (pip install wandb).", file=sys.stderr)
    chosen = args.only.split(";") if args.only else list(makers)
    try:
        variants = [Variant("bare", args.layers, bare)]
        variants += [Variant(name, args.layers, makers[name]) for name in makers if name in chosen]
        measure(variants, args.rounds, args.warmup)
        for monitor in MONITORS:
            monitor.close()
        print(tables.machine())
        print(report(variants, {name: folders[name] for name in folders if name in chosen}, args.rounds))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
