"""CPU time of `msprobe graph find` on a dump with 20,000 files: the figure of docs/graph.md.

    python benchmarks/graph_find.py DUMP [--files 20000]

DUMP is a small real dump with one graph (from examples/alexnet/train_alexnet.py --dump DUMP). The benchmark makes two
large dumps of it with links: many iterations of the same graph, and one iteration of a graph with many networks.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RENAMED = ("network-WithLossCell", "optimizer-Momentum")


def graph_of(dump: Path) -> tuple[Path, Path, list[Path]]:
    text = next((dump / "rank_0" / "graphs").glob("*.ir"))
    order = next((dump / "rank_0" / "execution_order").glob("ms_execution_order_*"))
    (place,) = {path.parents[1] for path in (dump / "rank_0").glob("*/*/0/*.npy")}
    return text, order, sorted((place / "0").glob("*.npy"))


def many_iterations(dump: Path, target: Path, files: int) -> None:
    text, order, tensors = graph_of(dump)
    for source in (text, order):
        (target / "rank_0" / source.parent.name).mkdir(parents=True)
        os.link(source, target / "rank_0" / source.parent.name / source.name)
    for iteration in range(-(-files // len(tensors))):
        place = target / "rank_0" / "Net" / "0" / str(iteration)
        place.mkdir(parents=True)
        for tensor in tensors:
            os.link(tensor, place / tensor.name)


def many_networks(dump: Path, target: Path, files: int) -> None:
    text, order, tensors = graph_of(dump)
    content, listed = text.read_text(), order.read_text().splitlines()
    start, end = content.index("  %0("), content.index("  Return(")
    nodes, names = [], listed[:1]
    place = target / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    for copy in range(-(-files // len(tensors))):

        def renamed(name: str, copy: int = copy) -> str:
            for word in RENAMED:
                name = name.replace(word, f"n{copy}{word}")
            return name

        body = re.sub(
            r"%(\d+)(?=[(,)])", lambda found, copy=copy: f"%{int(found[1]) + copy * 10_000}", content[start:end]
        )
        nodes.append(renamed(body))
        names += map(renamed, listed[1:])
        for tensor in tensors:
            os.link(tensor, place / renamed(tensor.name).replace("Parameter.", f"Parameter.n{copy}"))
    for source, whole in ((text, content[:start] + "".join(nodes) + "}\n"), (order, "\n".join(names))):
        (target / "rank_0" / source.parent.name).mkdir(parents=True)
        (target / "rank_0" / source.parent.name / source.name).write_text(whole)


def cpu_of_find(dump: Path, line: str) -> tuple[float, int]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "msprobe", "graph", "find", str(dump), line]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended.stdout.count(".npy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--line", default="x = self.conv3(x)")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}; CPU seconds, the best of three")
    with tempfile.TemporaryDirectory(dir=arguments.dump.parent) as name:
        for title, make in (("many iterations", many_iterations), ("many networks", many_networks)):
            target = Path(name) / title.replace(" ", "_")
            make(arguments.dump, target, arguments.files)
            results = [cpu_of_find(target, arguments.line) for _ in range(3)]
            print(f"{title:16} {min(results)[0]:.2f} s, {results[0][1]} tensors shown (goal: 1.00 s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
