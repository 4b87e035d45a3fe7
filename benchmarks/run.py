"""`make bench`: the cost of msprobe in a training step, compared with the bare step and with mindstudio-probe.

python benchmarks/run.py                             all cases, about fifteen minutes
python benchmarks/run.py --only L1/statistics        one case (or idle, sizes, memory, kernel); may be repeated
python benchmarks/run.py --write-docs                all cases, also into docs/overhead.md
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tables
from lockstep import ROOT, Case, Measurement, Variant, measure, peer_python

CASES = [Case(level, mode) for mode in ("statistics", "md5", "tensor") for level in ("L0", "L1", "mix")]
IDLE = Case(idle=True)
KERNELS = Case("L2", "statistics")
SIZES = (1, 4, 12)
MEMORY_STEPS = (5, 50)
AGAIN = "bare again"
"""A second bare process: shows the noise of the machine, and whether it computes the same losses twice."""
KERNEL = Path(__file__).with_name("kernel.py")
PEER_VERSION = "import importlib.metadata as m; print(m.version('mindstudio-probe'))"
CHOICES = [case.name for case in [*CASES, IDLE, KERNELS]] + ["sizes", "memory", "kernel"]


class Bench:
    """The options, the variants, and the sections printed so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.bare = Variant("bare", "bare", sys.executable)
        self.tools = [Variant("ours", "ours", sys.executable)]
        if args.peer:
            python = peer_python()
            if python is None:
                sys.exit(
                    "The peer's interpreter was not found: set MSPROBE_PEER_PYTHON to one that has mindstudio-probe,"
                    " run `make .venv-peer/.installed`, or leave the peer out with --no-peer."
                )
            version = subprocess.run([python, "-c", PEER_VERSION], check=True, capture_output=True, text=True, cwd="/")
            self.tools.append(Variant(f"peer {version.stdout.strip()}", "peer", python))
        self.names = [tool.name for tool in self.tools]
        self.sections: list[str] = []
        self.measured: list[dict[str, Any]] = []
        self.failures: set[str] = set()
        self.notes: set[str] = set()

    def wanted(self, *names: str) -> bool:
        return not self.args.only or any(name in self.args.only for name in names)

    def run(self) -> None:
        args = self.args
        self.show(tables.machine())
        self.show(tables.method(args.layers, args.rounds, args.threads, args.spin))
        cases = [Case(c.level, c.mode, args.layers, c.idle) for c in [*CASES, IDLE] if self.wanted(c.name)]
        if cases:
            self.cases(cases)
        if self.wanted(KERNELS.name):
            self.kernels(Case("L2", "statistics", args.layers))
        if self.wanted("sizes"):
            results = {case: self.measure(case) for case in (Case(layers=layers) for layers in SIZES)}
            self.show("## Over model size, L1/statistics", tables.sizes(results, self.names))
        if self.wanted("memory"):
            taken = {steps: self.measure(Case(), steps, warmup=0) for steps in MEMORY_STEPS}
            self.show("## Peak memory, L1/statistics", tables.memory(taken, self.names))
        if self.wanted("kernel"):
            self.kernel()

    def cases(self, cases: list[Case]) -> None:
        results = {case: self.measure(case) for case in cases}
        self.show("## CPU time of a step, as a ratio to the bare step", tables.overhead(results, self.names))
        if len(self.names) > 1:
            levels = {case: measurements for case, measurements in results.items() if case.mode == "statistics"}
            self.show("## Records that only one of them has", tables.differences(levels, self.names))
        tensor = {case: measurements for case, measurements in results.items() if case.mode == "tensor"}
        if tensor:
            self.show("## Disk, one step of the tensor task", tables.disk(tensor, self.names))

    def kernels(self, case: Case) -> None:
        """Only msprobe: the peer has this level only on Ascend."""
        measurements = self.measure(case, tools=self.tools[:1])
        self.show("## ATen operators (L2), the same ratio", tables.overhead({case: measurements}, self.names[:1]))

    def measure(
        self, case: Case, rounds: int | None = None, warmup: int = 2, tools: list[Variant] | None = None
    ) -> dict[str, Measurement]:
        again = Variant(AGAIN, "bare", sys.executable)
        variants = [self.bare, again, *(self.tools if tools is None else tools)]
        print(f"measuring {case.name}, {case.layers} layers", file=sys.stderr, flush=True)
        measurements = measure(case, variants, rounds or self.args.rounds, self.args.threads, self.args.spin, warmup)
        if measurements["bare"].error:
            sys.exit(f"The bare process failed; nothing can be measured: {measurements['bare'].error}")
        for name, measurement in measurements.items():
            self.judge(case, name, measurement, measurements)
        self.measured.append({**asdict(case), "variants": {n: asdict(a) for n, a in measurements.items()}})
        return measurements

    def judge(self, case: Case, name: str, measurement: Measurement, all_of_case: dict[str, Measurement]) -> None:
        """Notes what makes a figure useless: a variant that failed, or that changed the training."""
        where, bare = f"{case.name}, {case.layers} layers", all_of_case["bare"]
        if measurement.error:
            self.failures.add(f"{name} failed at {where}: {measurement.error}")
        elif measurement.hello.get("backend") == "python":
            self.failures.add(f"{name} ran without its C kernel and was slower: build it with `pip install -e .`")
        elif bare.losses != all_of_case[AGAIN].losses:
            self.notes.add(f"{where}: the two bare processes have different losses, so losses prove nothing here.")
        elif measurement.losses != bare.losses:
            self.failures.add(f"{name} at {where}: its losses differ from those of both bare processes")

    def kernel(self) -> None:
        if not KERNEL.exists():
            print("benchmarks/kernel.py is missing: no kernel figures", file=sys.stderr)
            return
        done = subprocess.run([sys.executable, str(KERNEL)], capture_output=True, text=True)
        if done.returncode:
            self.failures.add(f"kernel.py failed: {done.stderr.strip().splitlines()[-1:]}")
        self.show("## The statistics of one tensor", f"```\n{done.stdout.strip()}\n```")

    def show(self, *parts: str) -> None:
        text = "\n\n".join(parts)
        self.sections.append(text)
        print(text + "\n", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=CHOICES, help="measure only this; may be repeated")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds per case (9)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the GPT (4)")
    parser.add_argument("--threads", type=int, default=2, help="OpenMP threads of every process (2)")
    parser.add_argument("--spin", action="store_true", help="let waiting OpenMP threads spin")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="do not measure mindstudio-probe")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--write-docs", action="store_true", help="write docs/overhead.md")
    args = parser.parse_args()
    if args.rounds < 1 or args.layers < 1 or args.threads < 1:
        parser.error("--rounds, --layers and --threads must be at least 1")
    if args.write_docs and args.only:
        parser.error("--write-docs writes the whole page: leave out --only")
    return args


def main() -> int:
    args = options()
    bench = Bench(args)
    bench.run()
    if args.json:
        args.json.write_text(json.dumps(bench.measured))
    if bench.notes:
        bench.show("## Losses", "\n".join(f"- {note}" for note in sorted(bench.notes)))
    for failure in sorted(bench.failures):
        print(failure, file=sys.stderr)
    if bench.failures:
        return 1
    if args.write_docs:
        page = ["# Overhead", "Written by `python benchmarks/run.py --write-docs`.", *bench.sections]
        (ROOT / "docs" / "overhead.md").write_text("\n\n".join(page) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
