"""The cost of `msprobe compare` by number of ranks: equal ranks, of which one differs; and ranks of which every row
differs by rounding, as between two machines.

python benchmarks/compare_ranks.py [--ranks 1024] [--rounded 64] [--rows 10000] [--rounds 3]

CPU time and memory of complete processes with start-up. Each rank has numbers of its own. The golden dump's files are
hard links to the target's, except those of the rank that differs. How well two processes share the work is shown by
their CPU times too, because the wall time of a busy machine says little: at worst, the first process works before and
after the others, never beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tables

from compare import OURS, cost, in_turn, tensor, write_statistics

FRAMES = [f"File /srv/train/model.py, line {line}, in forward, \n y = self.layer(x)" for line in range(12)]
CALLS_PER_STACK = 50


def write_template(root: Path, rows: int) -> dict[str, bytes]:
    """The files of one rank; `#` stands in every statistic where a rank puts its own digits."""
    directory = write_statistics(root, rows) / "step0" / "rank"
    dump: dict[str, Any] = json.loads((directory / "dump.json").read_bytes())
    names = list(dump["data"])
    text = json.dumps(dump)
    for key in ("Max", "Min", "Mean", "Norm"):
        text = _with_marks(text, f'"{key}": ')
    parents = {name: f"Module.layers.{place // 40}.Block.forward.0" for place, name in enumerate(names)}
    stacks = {
        str(start): [names[start : start + CALLS_PER_STACK], FRAMES] for start in range(0, len(names), CALLS_PER_STACK)
    }
    return {
        "dump.json": text.encode(),
        "construct.json": json.dumps(parents).encode(),
        "stack.json": json.dumps(stacks).encode(),
    }


def _with_marks(text: str, key: str) -> str:
    """Each number after the key, as 10 characters and a `#`."""
    head, *parts = text.split(key)
    return head + "".join(key + part[:10] + "#" + part[part.index(",") :] for part in parts)


def write_ranks(work: Path, template: dict[str, bytes], ranks: int) -> tuple[Path, Path]:
    """Two dumps in which one rank in the middle differs in one call; the name of that rank is `ranks // 2`."""
    target, golden = work / f"target{ranks}", work / f"golden{ranks}"
    for rank in range(ranks):
        ours, theirs = (root / "step0" / f"rank{rank}" for root in (target, golden))
        ours.mkdir(parents=True)
        theirs.mkdir(parents=True)
        for name, content in template.items():
            own = content.replace(b"#", str(1000 + rank).encode()) if name == "dump.json" else content
            (ours / name).write_bytes(own)
            (theirs / name).hardlink_to(ours / name)
    differing = target / "step0" / f"rank{ranks // 2}" / "dump.json"
    data = json.loads(differing.read_bytes())
    names = list(data["data"])
    data["data"][names[len(names) // 4]]["output"] = [tensor(7.0, [8, 16])]
    differing.unlink()
    differing.write_text(json.dumps(data))
    return target, golden


def write_rounded(work: Path, template: dict[str, bytes], ranks: int) -> tuple[Path, Path]:
    """Two dumps whose statistics differ in their last digits, in every row of every rank."""
    sides = work / f"rounded_target{ranks}", work / f"rounded_golden{ranks}"
    for rank in range(ranks):
        for root, tail in zip(sides, (b"37", b"21")):
            directory = root / "step0" / f"rank{rank}"
            directory.mkdir(parents=True)
            for name, content in template.items():
                (directory / name).write_bytes(content.replace(b"#", str(1000 + rank).encode() + tail))
    return sides


def measure_rounded(work: Path, template: dict[str, bytes], ranks: int, rounds: int) -> None:
    counts = {"half": ranks // 2, "whole": ranks}
    commands = {name: [*OURS, *map(str, write_rounded(work, template, count))] for name, count in counts.items()}
    found = in_turn({name: lambda one=one: cost(one, work) for name, one in commands.items()}, rounds)
    memory = {}
    for name, command in commands.items():
        usage = [sys.executable, "-c", _USAGE, *command]
        memory[name] = int(subprocess.run(usage, capture_output=True, text=True, check=True).stdout) / 1e6
    each = (found["whole"][0] - found["half"][0]) / (ranks - ranks // 2)
    said = [f"{count} ranks {found[name][0]:.1f} CPU-s, {memory[name]:.2f} GB" for name, count in counts.items()]
    print(f"- every row rounded: {'; '.join(said)}; {each:.2f} CPU-s a further rank")


_USAGE = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


_SPLIT = """import sys, time
from concurrent.futures import process
from msprobe.compare import compare
work, log = process._process_worker, sys.argv[3]
def measured(*given, **named):
    work(*given, **named)
    with open(log, "a") as file:
        file.write(f"{time.process_time()}\\n")
process._process_worker = measured
compare(sys.argv[1], sys.argv[2], jobs=int(sys.argv[4]))
print(time.process_time())"""


def measure_split(work: Path, dumps: tuple[Path, Path], rounds: int) -> None:
    """The CPU time of one process, against that of the first of two and the slower of its workers."""
    ratios = []
    for _ in range(rounds):
        log = work / "workers"
        log.write_text("")
        alone, first = (
            float(subprocess.run(
                [sys.executable, "-c", _SPLIT, *map(str, dumps), str(log), jobs],
                capture_output=True, text=True, check=True,
            ).stdout)
            for jobs in ("1", "2")
        )  # fmt: skip
        workers = [float(line) for line in log.read_text().split()]
        ratios.append((alone / (first + max(workers)), alone, first, *workers))
    ratio, alone, first, *workers = sorted(ratios)[len(ratios) // 2]
    said = " and ".join(f"{one:.1f}" for one in workers)
    print(
        f"- one process {alone:.1f} CPU-s; of two, the first {first:.1f} and the workers {said}: {ratio:.2f} at worst"
    )


def check_answer(target: Path, golden: Path, ranks: int, template: dict[str, bytes]) -> None:
    """The origin is named, on the right rank; every row is counted."""
    done = subprocess.run([*OURS, str(target), str(golden), "--json"], capture_output=True, text=True, check=False)
    summary = json.loads(done.stdout)
    names = list(json.loads(template["dump.json"].replace(b"#", b""))["data"])
    origin = summary["origin"] or {}
    if (origin.get("name"), origin.get("rank")) != (names[len(names) // 4], ranks // 2):
        sys.exit(f"{ranks} ranks: the origin is {origin.get('name')} on rank {origin.get('rank')}")
    print(f"- {ranks} ranks, {summary['rows']:,} rows: origin {origin['name']} on rank {origin['rank']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--rounded", type=int, default=64, help="ranks of which every row differs by rounding; 0: none")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(tables.machine())
    print(f"\n## {args.ranks} ranks of {args.rows:,} rows, one differs\n")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        template = write_template(work / "template", args.rows)
        counts = (args.ranks // 4, args.ranks // 2, args.ranks)
        dumps = {ranks: write_ranks(work, template, ranks) for ranks in counts}
        os.sync()  # writing back must not be part of a time
        check_answer(*dumps[args.ranks], args.ranks, template)
        commands = {str(ranks): [*OURS, *map(str, dumps[ranks])] for ranks in counts}
        all_ranks = commands[str(args.ranks)]
        found = in_turn({name: lambda one=one: cost(one, work) for name, one in commands.items()}, args.rounds)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        two = in_turn(
            {"one": lambda: cost(all_ranks, work), "two": lambda: cost([*all_ranks, "--jobs", "2"], work)}, args.rounds
        )
        measure_split(work, dumps[args.ranks], args.rounds)
        if args.rounded:
            measure_rounded(work, template, args.rounded, args.rounds)
    print(
        f"- {memory:.2f} GB in the largest process; "
        + ", ".join(f"{n} ranks {found[str(n)][0]:.1f} CPU-s" for n in counts)
    )
    print(f"- two processes: {two['one'][1] / two['two'][1]:.2f} times as fast as one (wall)")


if __name__ == "__main__":
    main()
