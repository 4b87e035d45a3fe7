"""The cost of `msprobe convert` compared with `cp`, as ratios of CPU time: the figures of docs/graph.md.

    python benchmarks/convert.py [--megabytes 64] [--rounds 5]

Each side takes its best of several rounds, so that other load on the machine matters less.
"""

from __future__ import annotations

import argparse
import platform
import resource
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable

import numpy as np

from msprobe.graphdump.files.convert import Request, convert_file, plan
from msprobe.graphdump.files.schema import message_class

CASES = {
    "NCHW float16 to npy": (0, 0.60),
    "NC1HWC0 float16 to NCHW npy": (3, 0.30),
}


def write_sample(path: Path, megabytes: int, form: int) -> None:
    channels, height, width = 256, 32, 32
    batch = megabytes * 2**20 // (2 * channels * height * width)
    message = message_class("dump_data.proto", "DumpData")()
    output = message.output.add(data_type=2, format=form, size=2 * batch * channels * height * width)
    output.original_shape.dim.extend([batch, channels, height, width])
    stored = [batch, channels // 16, height, width, 16] if form == 3 else [batch, channels, height, width]
    output.shape.dim.extend(stored)
    header = message.SerializeToString()
    data = np.random.default_rng(0).integers(0, 2**16, stored, np.uint16)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data.tobytes())


def cpu_of_cp(source: Path, target: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "--reflink=never", str(source), str(target)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_of_convert(source: Path, out: Path) -> float:
    (job,), _ = plan(source, out)
    started = time.process_time()
    outcome = convert_file(job, Request(target="NCHW"))
    spent = time.process_time() - started
    if outcome.errors:
        raise SystemExit(f"conversion failed: {outcome.errors}")
    return spent


def best(rounds: int, measure: Callable[[], float], clean: Callable[[], None]) -> float:
    results = []
    for _ in range(rounds):
        clean()
        results.append(measure())
    clean()
    return min(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}; CPU seconds")
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        source, copy, out = (
            root / "Conv2D.Default_Conv2D-op1.1.1.1623124369613540",
            root / "copy",
            root / "out",
        )
        for title, (form, wanted) in CASES.items():
            write_sample(source, arguments.megabytes, form)
            cp = best(arguments.rounds, lambda: cpu_of_cp(source, copy), lambda: copy.unlink(missing_ok=True))
            ours = best(
                arguments.rounds,
                lambda: cpu_of_convert(source, out),
                lambda: shutil.rmtree(out, ignore_errors=True),
            )
            missed += cp / ours < wanted
            print(f"{title:30} cp {cp:.3f}  convert {ours:.3f}  {cp / ours:.0%} of the speed of cp (goal {wanted:.0%})")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
