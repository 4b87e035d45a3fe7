"""`make bench`: runs every benchmark, one after the other.

    python benchmarks/all.py                    all of them, about an hour
    python benchmarks/all.py --quick            few rounds of each, some minutes: shows only that they run
    python benchmarks/all.py --only compare     one of them; may be repeated
    python benchmarks/all.py --no-peer          without mindstudio-probe

Each benchmark is a script of its own and may be run alone; it says what it measures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Benchmark:
    """A script, its arguments for a quick run, and whether it knows `--no-peer`."""

    name: str
    script: str
    quick: tuple[str, ...] = ()
    has_peer: bool = False
    needs_dump: bool = False


BENCHMARKS = (
    Benchmark("kernel", "kernel.py"),
    Benchmark("formats", "formats.py", ("--rounds", "2")),
    Benchmark("pytorch", "run.py", ("--rounds", "1", "--only", "L0/statistics", "--only", "mix/statistics"), True),
    Benchmark("parts", "parts.py", ("--steps", "5")),
    Benchmark("mindspore", "mindspore_run.py", ("--rounds", "1", "--only", "L1/statistics")),
    Benchmark("tasks", "tasks.py", ("--rounds", "1", "--only", "overflow_check")),
    Benchmark("compare", "compare.py", has_peer=True),
    Benchmark("compare_ranks", "compare_ranks.py", ("--ranks", "32", "--rounds", "1")),
    Benchmark("check", "check.py", ("100",)),
    Benchmark("check_online", "check_online.py", ("3", "1")),
    Benchmark("graph_dump", "graph_dump.py", ("--rounds", "1", "--steps", "1")),
    Benchmark("graph_find", "graph_find.py", ("--files", "2000"), needs_dump=True),
    Benchmark("compiled", "compiled/run.py", ("--part", "pairing", "--part", "cost")),
    Benchmark("watch", "watch.py", ("--rounds", "2", "--only", "bare again;default;everything;quantisation mxfp8")),
    Benchmark("view", "view.py", ("--rows", "2000", "--steps", "2", "--rounds", "1")),
    Benchmark("convert", "convert.py", ("--megabytes", "8", "--rounds", "1")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every benchmark.")
    parser.add_argument("--quick", action="store_true", help="few rounds of each")
    parser.add_argument("--only", action="append", choices=[each.name for each in BENCHMARKS])
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave mindstudio-probe out")
    args = parser.parse_args()
    failed = []
    for benchmark in BENCHMARKS:
        if args.only and benchmark.name not in args.only:
            continue
        print(f"\n## {benchmark.name}", flush=True)
        if run_benchmark(benchmark, args.quick, args.peer):
            failed.append(benchmark.name)
    if failed:
        print(f"\nThese benchmarks failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def run_benchmark(benchmark: Benchmark, quick: bool, peer: bool) -> int:
    """The exit code of one benchmark."""
    command = [sys.executable, str(HERE / benchmark.script), *(benchmark.quick if quick else ())]
    if benchmark.has_peer and not peer:
        command.append("--no-peer")
    with tempfile.TemporaryDirectory() as directory:
        if benchmark.needs_dump:
            dump = Path(directory) / "dump"
            code = make_graph_dump(dump)
            if code:
                return code
            command.insert(2, str(dump))
        return subprocess.run(command, check=False).returncode


def make_graph_dump(path: Path) -> int:
    """A small graph-mode dump of AlexNet."""
    script = HERE.parent / "examples" / "alexnet" / "train_alexnet.py"
    environment = {**os.environ, "GLOG_v": "3"}
    return subprocess.run([sys.executable, str(script), "--dump", str(path)], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
