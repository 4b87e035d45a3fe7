"""CPU time of a statistics dump in graph mode compared with MindSpore's own tensor dump, and the size of temporary
files: the figures of docs/graph_dump.md.

    python benchmarks/graph_dump.py [--rounds 5] [--steps 3] [--disk-budget 2GB] [--json FILE]

Each round runs the training (an MLP, about 270 MB of tensors per step) twice, in separate processes: with
MINDSPORE_DUMP_CONFIG alone, and with `msprobe graph dump` and saved_data statistic. CPU time is that of all processes
with start-up, on both sides. Disk use is sampled every two milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

WANTED = 1.5


def train(steps: int) -> None:
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    ms.set_seed(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    layers = [layer for _ in range(4) for layer in (nn.Dense(1024, 1024), nn.ReLU())]
    network = nn.SequentialCell(*layers, nn.Dense(1024, 10))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer).set_train()
    generator = np.random.default_rng(1)
    for _ in range(steps):
        images = ms.Tensor(generator.standard_normal((512, 1024)), ms.float32)
        print(float(step(images, ms.Tensor(generator.integers(0, 10, 512), ms.int32))).hex())


def settings(path: Path, saved: str) -> dict[str, object]:
    common = {"op_debug_mode": 0, "dump_mode": 0, "path": str(path), "net_name": "N", "iteration": "all"}
    common.update(saved_data=saved, input_output=0, kernels=[], support_device=[0])
    return {"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}}


class Watched:
    """The peak size of all files under a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            total = 0
            for place, _, files in os.walk(self._directory):
                for name in files:
                    try:
                        total += os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118 - called often
                    except OSError:
                        pass  # deleted in the meantime
            self.most = max(self.most, total)


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """CPU seconds of a command and its children, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        sys.exit(ended.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended.stdout


def one_round(steps: int, budget: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as directory:
        top = Path(directory)
        script = [__file__, "--train", "--steps", str(steps)]
        environment = {**os.environ, "GLOG_v": "3"}
        theirs, ours = top / "theirs.json", top / "ours.json"
        theirs.write_text(json.dumps(settings(top / "theirs", "tensor")))
        ours.write_text(json.dumps(settings(top / "ours", "statistic")))
        first, losses = measured([sys.executable, *script], {**environment, "MINDSPORE_DUMP_CONFIG": str(theirs)})
        dumped = sum(path.stat().st_size for path in (top / "theirs").rglob("*.npy"))
        dump = ["-m", "msprobe", "graph", "dump", "--config", str(ours), "--disk-budget", budget]
        with Watched(top / "ours") as disk:
            second, again = measured([sys.executable, *dump, *script], environment)
        if losses != again:
            sys.exit(f"the losses differ: {losses} and {again}")
        rows = sum(1 for path in (top / "ours").rglob("statistic.csv") for _ in path.open()) - steps
    return {"theirs": first, "ours": second, "ratio": second / first, "dumped": dumped, "disk": disk.most, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--disk-budget", default="2GB")
    parser.add_argument("--json", type=Path, help="write the figures of every round to this file")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.steps)
        return
    rounds = [one_round(args.steps, args.disk_budget) for _ in range(args.rounds)]
    ratios = sorted(one["ratio"] for one in rounds)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {args.steps} steps")
    print(f"tensors of a run: {rounds[0]['dumped'] / 1e6:.0f} MB, rows: {rounds[0]['rows']:.0f}")
    print(f"CPU seconds, MindSpore's tensor dump: {statistics.median(one['theirs'] for one in rounds):.2f}")
    print(f"CPU seconds, statistics by msprobe:   {statistics.median(one['ours'] for one in rounds):.2f}")
    print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); goal: at most {WANTED}")
    print(f"disk in use at most: {max(one['disk'] for one in rounds) / 1e6:.0f} MB; budget {args.disk_budget}")
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
