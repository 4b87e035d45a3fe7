"""Damaged and hostile files for every reader: DumpError or a result, and nothing else.

python tests/fuzz/fuzz_readers.py [SECONDS] [SEED]     `make fuzz`: every reader in turn, until the time is over

A file that a reader accepts is changed at random (bytes, or one value of its JSON) and read again. An exception that
is not meant for the user is a finding; it is printed with the seed that makes it again.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable

import numpy as np
import yaml

from msprobe.analyze.overflow import analyse
from msprobe.check.core.plan import make_plan
from msprobe.check.core.results import RESULT_COLUMNS, read_csv
from msprobe.dump.errors import DumpError
from msprobe.dump.names import parse_name
from msprobe.dump.reader import items, open_dump
from msprobe.dump.recovery import recover
from msprobe.dump.stack_frames import source_line, user_frame
from msprobe.dump.summary import summarise
from msprobe.dump.tensor_files import codec
from msprobe.dump.untrusted import yaml_files
from msprobe.graphdump import GraphDump
from msprobe.graphdump.check import check

Read = Callable[[Path], object]
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.5, "Min": -2.0, "Mean": 0.1,
          "Norm": 3.0, "requires_grad": True, "md5": "0a1b2c3d", "data_name": "x.pt"}  # fmt: skip
FRAME = "File /home/me/train.py, line 7, in forward, \n y = f(x)"
RECORDS = {
    "Torch.relu.0.forward": {
        "input_args": [TENSOR, {"type": "int", "value": 3}],
        "input_kwargs": {},
        "output": [TENSOR],
    },
    "Torch.relu.0.backward": {"input": [TENSOR, None], "output": [TENSOR]},
    "Module.a.Linear.forward.0": {"input_args": [TENSOR], "input_kwargs": {"k": TENSOR}, "output": [TENSOR]},
    "Module.a.Linear.parameters_grad": {"weight": [TENSOR]},
    "Distributed.all_reduce.0.forward": {"input_args": [TENSOR], "input_kwargs": {}, "output": [TENSOR]},
}
HEAD = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
ODD = (None, True, -1, 10**400, 1e308, float("nan"), "", "x" * 5000, "=1+1", "\ud800", [], {}, [[]], "../..", "٣")


def rank_of(path: Path) -> Path:
    return path / "step0" / "rank"


def read_dump(path: Path) -> None:
    for rank in open_dump(path).ranks:
        summarise(rank)
        make_plan(rank.records)
        for frames in rank.stacks.values():
            user_frame(frames)
            source_line(frames)
        _ = rank.construct, rank.run, rank.debug, rank.troubles
        for name, record in rank.records.items():
            parse_name(name)
            list(items(record))
        analyse([rank])


def recover_dump(path: Path) -> None:
    recover(rank_of(path))
    read_dump(path)


def read_graph(path: Path) -> None:
    dump = GraphDump(path)
    _ = dump.notes
    check(dump)


def read_yaml(path: Path) -> None:
    try:
        yaml_files.load_all(path.read_bytes())
    except yaml.YAMLError:
        raise DumpError("not YAML") from None


def change_bytes(data: bytes, dice: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(result) + 1)
        piece = dice.choice((dice.randbytes(dice.randint(1, 6)), b"\xff" * 4, b"9" * 30, b'"', b"-", b"\n"))
        kind = dice.randrange(3)
        if kind == 0:
            result[at : at + len(piece)] = piece
        elif kind == 1:
            result[at:at] = piece
        else:
            del result[at : at + dice.randint(1, 40)]
    return bytes(result)


def change_json(data: bytes, dice: random.Random) -> bytes:
    """One value, or one key, of a JSON text becomes something odd."""
    value = json.loads(data)
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key in one if isinstance(one, dict) else range(len(one)):
            places.append((one, key))
            if isinstance(one[key], (dict, list)):
                walk(one[key])

    walk(value)
    holder, key = dice.choice(places)
    if isinstance(holder, dict) and dice.random() < 0.2:
        holder[str(dice.choice(ODD))] = holder.pop(key)
    else:
        holder[key] = dice.choice(ODD)
    return json.dumps(value).encode("utf-8", "surrogatepass")


class Target:
    """One reader, a directory that it accepts, and the files in it that are changed."""

    def __init__(self, name: str, read: Read, root: Path, *changed: Path) -> None:
        self.name, self.read, self.root = name, read, root
        self.originals = {path: path.read_bytes() for path in changed}
        self.clean = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} if root.is_dir() else {}

    def attack(self, seed: int) -> bool:
        """Whether the reader held: a result, or one sentence for the user."""
        dice = random.Random(f"{self.name} {seed}")
        path, data = dice.choice(sorted(self.originals.items()))
        is_json = path.suffix == ".json" and dice.random() < 0.7
        path.write_bytes(change_json(data, dice) if is_json else change_bytes(data, dice))
        try:
            self.read(self.root)
        except DumpError as error:
            return "\n" not in str(error).strip() or self._finding(seed)
        except Exception:
            return self._finding(seed)
        finally:
            path.write_bytes(data)
            self._tidy()
        return True

    def _finding(self, seed: int) -> bool:
        print(f"--- {self.name}, seed {seed}")
        traceback.print_exc(file=sys.stdout)
        return False

    def _tidy(self) -> None:
        for path in self.root.rglob("*") if self.clean else ():
            if path.is_file() and path not in self.clean:
                path.unlink()


def make_targets(directory: Path) -> list[Target]:
    return [_dump(directory / "dump"), _journal(directory / "journal"), _graph(directory / "graph"),
            *_tensors(directory / "t" / "tensors"), *_tables(directory)]  # fmt: skip


def _dump(root: Path) -> Target:
    rank = rank_of(root)
    rank.mkdir(parents=True)
    contents = {
        "dump.json": {**HEAD, "data": RECORDS},
        "stack.json": {"0": [list(RECORDS), [FRAME, FRAME]]},
        "construct.json": dict.fromkeys(RECORDS, "Module.a.Linear.forward.0"),
        "run.json": {"msprobe": "0.1.0", "settings": {"task": "statistics"}},
    }
    for name, content in contents.items():
        (rank / name).write_text(json.dumps(content))
    return Target("dump", read_dump, root, *(rank / name for name in contents))


def _journal(root: Path) -> Target:
    rank = rank_of(root)
    rank.mkdir(parents=True)
    lines: list[Any] = [["head", {**HEAD, "format": 1, "extra_info": True}], ["stack", 0, [FRAME]]]
    lines += [["record", name, None, 0, record] for name, record in RECORDS.items()]
    lines.append(["begin", 1, "Torch.exp.0.forward", None, 0, {"input_args": [TENSOR]}])
    (rank / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Target("journal", recover_dump, root, rank / "journal.jsonl")


def _graph(root: Path) -> Target:
    place = root / "rank_0" / "Net" / "0" / "0"
    place.mkdir(parents=True)
    (root / "rank_0" / "graphs").mkdir()
    (place / "statistic.csv").write_text(
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Count\n"
        'Add,Default_Add-op0,0,0,100,output,0,16,Float32,"(2,2)",3,-1,4\n'
    )
    np.save(place / "Add.Default_Add-op0.0.0.5.output.0.DefaultFormat.npy", np.ones((2, 2), np.float32))
    ir = root / "rank_0" / "graphs" / "ms_output_trace_code_graph_0.ir"
    ir.write_text(
        "subgraph @0_net() {\n"
        "  %0(a) = Add(%para1_x, %para2_y) {instance name: add} primitive_attrs: {visited: true}\n"
        "      : (<Tensor[Float32], (2, 2)>, <Tensor[Float32], (2, 2)>) -> (<Tensor[Float32], (2, 2)>)\n"
        "      : (<Float32xDefaultFormat[const vector][2, 2]>) -> (<Float16xDefaultFormat[const vector][2, 2]>)\n"
        "      # Fullname with scope: (Default/Add-op0)\n"
        "      # In file /home/me/net.py:7, 11~24/    return x + y/\n"
        "  Return(%0)\n}\n"
    )
    return Target("graph", read_graph, root, *(path for path in root.rglob("*") if path.is_file()))


def _tensors(root: Path) -> list[Target]:
    root.mkdir(parents=True)
    found = []
    for suffix, dtype in itertools.product(("npy", "pt"), ("float32", "bfloat16", "complex64")):
        payload = codec.Payload(dtype, (2, 3), bytes(6 * {"float32": 4, "bfloat16": 2, "complex64": 8}[dtype]), suffix)
        path = root / f"{dtype}.{suffix}"
        path.write_bytes(b"".join(bytes(part) for part in codec.encode(payload)))  # type: ignore[call-overload]
        found += [Target(f"{path.name}, mapped", lambda file: codec.load(file, mmap=True), path, path)]
        found += [Target(f"{path.name}, read", lambda file: codec.load(file), path, path)]
    return found


def _tables(directory: Path) -> list[Target]:
    table, names = directory / "results.csv", directory / "names.yaml"
    table.write_text(",".join(RESULT_COLUMNS) + "\nTorch.relu.0,pass,SKIP,\n" * 5)
    names.write_text("tensor:\n  - add\n  - 'mul'\ntorch: [relu, {a: 1}]\n? x\n: &a [1.5, 2024-01-01]\n")
    return [
        Target("results", lambda path: read_csv(path, RESULT_COLUMNS), table, table),
        Target("yaml", read_yaml, names, names),
    ]


def main() -> int:
    seconds, first = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    warnings.simplefilter("ignore")
    ends, tried, findings = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        targets = make_targets(Path(directory))
        for seed in itertools.count(first):
            for target in targets:
                tried += 1
                findings += not target.attack(seed)
            if time.monotonic() > ends or findings > 20:
                break
    print(f"{tried} files, {findings} findings, seeds {first} to {seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
