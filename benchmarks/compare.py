"""The cost of `msprobe compare`: compared with mindstudio-probe, by number of rows, by matching and by processes.

python benchmarks/compare.py [--no-peer]

CPU times of complete processes with start-up. Every figure is a ratio of two times, measured alternately.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import tables
from lockstep import ROOT, peer_python

OURS = [sys.executable, "-m", "msprobe", "compare"]
ROUNDS = 3
FILES = 256
DISTINCT = 16
APIS = ("linear", "relu", "layer_norm", "softmax", "dropout")


def tensor(value: float, shape: list[int]) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": shape,
        "Max": value * 3,
        "Min": -value * 2.5,
        "Mean": value * 0.01,
        "Norm": value * 50,
        "requires_grad": True,
    }


def write_statistics(root: Path, rows: int, drift: float = 0.0, shift: int = 0, insert: int = 0) -> Path:
    """A dump of about `rows` rows, half forward and half backward; `shift` renumbers, `insert` adds calls."""
    numbers = random.Random(0)
    data: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for index in range(rows // 8):
        apis = [APIS[index % 5]]
        if insert and index % insert == insert - 1:
            apis.insert(0, "extra")
        for api in apis:
            number = seen.get(api, 0)
            seen[api] = number + 1
            v = [numbers.random() + 0.5 for _ in range(3)] if api != "extra" else [1.0] * 3
            data[f"Functional.{api}.{number + shift}.forward"] = {
                "input_args": [tensor(v[0], [8, 16]), tensor(v[1], [16, 16]), {"type": "float", "value": 1e-5}],
                "input_kwargs": {},
                "output": [tensor(v[2] * (1 + drift), [8, 16])],
            }
    for name in list(reversed(data)):
        v = [numbers.random() + 0.5 for _ in range(4)]
        data[name.replace("forward", "backward")] = {
            "input": [tensor(v[0], [8, 16])],
            "output": [tensor(v[1] * (1 + drift), [8, 16]), tensor(v[2], [16, 16]), tensor(v[3], [16])],
        }
    _write(root, data, "statistics")
    return root


def write_tensors(root: Path, files: int, elements: int, off: float) -> Path:
    directory = root / "step0" / "rank" / "dump_tensor_data"
    directory.mkdir(parents=True)
    data: dict[str, Any] = {}
    array = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    for index in range(files):
        name = f"Functional.relu.{index}.forward"
        if index < DISTINCT:
            np.save(directory / f"{name}.output.0.npy", array + np.float32(off))
        else:
            first = f"Functional.relu.{index % DISTINCT}.forward.output.0.npy"
            (directory / f"{name}.output.0.npy").hardlink_to(directory / first)
        item = {**tensor(1.0, [elements]), "data_name": f"{name}.output.0.npy"}
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [item]}
    _write(root, data, "tensor")
    return root


def _write(root: Path, data: dict[str, Any], task: str) -> None:
    directory = root / "step0" / "rank"
    directory.mkdir(parents=True, exist_ok=True)
    tensors = str(directory / "dump_tensor_data") if task == "tensor" else None
    head = {"task": task, "level": "L1", "framework": "pytorch", "dump_data_dir": tensors, "data": data}
    (directory / "dump.json").write_text(json.dumps(head))
    (directory / "construct.json").write_text("{}")
    (directory / "stack.json").write_text("{}")


def cost(command: list[str], cwd: Path) -> tuple[float, float]:
    """CPU seconds and wall seconds of a process and its children. The exit code must be 0 or 1."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if command[: len(OURS)] == OURS:
        environment["PYTHONPATH"] = str(ROOT / "src")  # mindstudio-probe has the same import name and must not see it
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def in_turn(work: dict[str, Callable[[], tuple[float, float]]], rounds: int = ROUNDS) -> dict[str, tuple[float, float]]:
    """The best of several rounds of each. The rounds alternate, so that other load affects all in the same way."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, run in work.items():
            cpu, wall = run()
            old = best.get(name, (cpu, wall))
            best[name] = (min(cpu, old[0]), min(wall, old[1]))
    return best


def statistics(work: Path, peer: str | None) -> None:
    golden = write_statistics(work / "golden", 20_000)
    drifted = write_statistics(work / "drifted", 20_000, drift=1e-3)
    shifted = write_statistics(work / "shifted", 20_000, drift=1e-3, shift=3)
    inserted = write_statistics(work / "inserted", 20_000, drift=1e-3, insert=50)
    large = [write_statistics(work / f"large{d}", 200_000, drift=d) for d in (1e-3, 0.0)]
    out = ["--csv", str(work / "out.csv")]

    def ours(*arguments: object) -> Callable[[], tuple[float, float]]:
        return lambda: cost([*OURS, *map(str, arguments)], work)

    runs = {
        "exact": ours(drifted, golden, *out),
        "fuzzy": ours(shifted, golden, *out, "--fuzzy"),
        "automatic, 1 call in 50 inserted": ours(inserted, golden, *out),
    }
    found = in_turn(runs)
    exact = found["exact"][0]
    print("\n## 20,000 rows of statistics, to csv (CPU time, start-up included)\n")
    for name, (cpu, _) in found.items():
        print(f"- {name}: {cpu:.2f} s, {cpu / exact:.2f} of the exact match")
    big = in_turn({"200,000 rows": ours(*large, *out)}, rounds=1)["200,000 rows"][0]
    print(f"- 200,000 rows: {big:.2f} s, {big / exact:.1f} times 20,000 rows")
    if peer:
        dumps = {"npu_path": drifted, "bench_path": golden}
        paths = {key: str(path / "step0" / "rank" / "dump.json") for key, path in dumps.items()}
        (work / "compare.json").write_text(json.dumps({**paths, "is_print_compare_log": False}))
        (work / "peer").mkdir()
        command = [str(Path(peer).with_name("msprobe")), "-f", "pytorch", "compare", "-i", str(work / "compare.json")]
        theirs = in_turn({"peer": lambda: cost([*command, "-o", str(work / "peer"), "-c"], work)}, rounds=2)["peer"][0]
        if not any((work / "peer").iterdir()):
            sys.exit("the peer wrote no result: its time means nothing")
        print(f"- mindstudio-probe, xlsx: {theirs:.2f} s; msprobe to csv takes 1/{theirs / exact:.1f} of it")


def tensors(work: Path) -> None:
    print("\n## Saved tensors\n")
    target = write_tensors(work / "t", FILES, 1 << 22, 1e-6)
    golden = write_tensors(work / "g", FILES, 1 << 22, 0.0)
    script = (
        "import sys, numpy as np, pathlib\n"
        "for a in sorted(pathlib.Path(sys.argv[1]).rglob('*.npy')):\n"
        "    float((np.load(a) - np.load(sys.argv[2] / a.relative_to(sys.argv[1]))).sum())\n"
    ).replace("sys.argv[2] /", "pathlib.Path(sys.argv[2]) /")
    found = in_turn(
        {
            "numpy": lambda: cost([sys.executable, "-c", script, str(target), str(golden)], work),
            "ours": lambda: cost([*OURS, str(target), str(golden)], work),
            "two processes": lambda: cost([*OURS, str(target), str(golden), "--jobs", "2"], work),
        }
    )
    size = FILES * (1 << 22) * 4 * 2 / 1e9
    print(f"{size:.1f} GB in {FILES} pairs of files; start-up included")
    print(f"- reading both and summing the difference in numpy: {found['numpy'][0]:.2f} CPU-s")
    speed = found["numpy"][0] / found["ours"][0]
    print(f"- msprobe, all metrics: {found['ours'][0]:.2f} CPU-s, {speed:.2f} of the speed of numpy")
    print(f"- two processes: {found['ours'][1] / found['two processes'][1]:.2f} times as fast as one (wall)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    args = parser.parse_args()
    print(tables.machine())
    with tempfile.TemporaryDirectory() as directory:
        statistics(Path(directory), peer_python() if args.peer else None)
        tensors(Path(directory))


if __name__ == "__main__":
    main()
