"""The readers of a dump, of the files that a user gives them, and of what they wrote themselves."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzzing import Target

from msprobe.analyze.overflow import analyse
from msprobe.check.core.plan import make_plan
from msprobe.check.core.results import DETAIL_COLUMNS, RESULT_COLUMNS, read_csv
from msprobe.cli import _run
from msprobe.config import load
from msprobe.dump.errors import DumpError
from msprobe.dump.names import parse_name
from msprobe.dump.reader import items, open_dump
from msprobe.dump.recovery import recover
from msprobe.dump.stack_frames import source_line, user_frame
from msprobe.dump.tensor_files import codec
from msprobe.dump.untrusted import yaml_files

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.5, "Min": -2.0, "Mean": 0.1,
          "Norm": 3.0, "requires_grad": True, "md5": "0a1b2c3d", "data_name": "x.npy"}  # fmt: skip
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
HEAD = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
UPDATE = {"event": "update", "after": "Module.a.Linear.parameters_grad", "optimizer": "AdamW", "lr": [0.1]}
REPORTS = ("--csv", "--json", "--html", "--xlsx", "--next-config")
MAPPINGS = {
    "-dm": "Torch.relu.0.forward.input.0: Torch.relu.0.forward.input.0\n",
    "-cm": "a.Linear: a.Linear\nb.Dense: b.Linear\n",
    "-am": "- {ms_api: mint.relu, pt_api: torch.relu, ms_args: [0], pt_args: [0], ms_outputs: [0], pt_outputs: [0]}\n",
    "-lm": "TopLayer: {a: b}\nNet: {fc: dense}\n",
}


def rank_of(path: Path) -> Path:
    return path / "step0" / "rank"


def read_dump(path: Path) -> None:
    for rank in open_dump(path).ranks:
        make_plan(rank.records)
        for frames in rank.stacks.values():
            user_frame(frames)
            source_line(frames)
        _ = rank.sources, rank.construct, rank.run, rank.debug, rank.troubles, rank.training
        for name, record in rank.records.items():
            parse_name(name)
            list(items(record))
        analyse([rank])


def show(path: Path) -> None:
    _run("show", [str(path), "--json"], None)
    _run("show", [str(path)], None)
    _run("overflow", [str(path)], None)


def recover_dump(path: Path) -> None:
    recover(rank_of(path))
    read_dump(path)


def compare(path: Path) -> None:
    """The verb with every report, in both roles: the damaged dump as target and as golden."""
    reports = [word for option in REPORTS for word in (option, str(path / f"report{option}"))]
    _run("compare", [str(path / "changed"), str(path / "right"), *reports], None)
    _run("compare", [str(path / "right"), str(path / "changed")], None)


def compare_mapped(path: Path) -> None:
    mappings = [word for option in MAPPINGS for word in (option, str(path / f"map{option}.yaml"))]
    _run("compare", [str(path / "a"), str(path / "b"), *mappings], None)


def second_stage(path: Path) -> None:
    _run("api_precision_compare", ["-npu", str(path / "npu.csv"), "-gpu", str(path / "gpu.csv"), "-o", str(path)], None)


def read_yaml(path: Path) -> None:
    try:
        yaml_files.load_all(path.read_bytes())
    except yaml.YAMLError:
        raise DumpError("not YAML") from None


def write_dump(root: Path) -> list[Path]:
    rank = rank_of(root)
    (rank / "dump_tensor_data").mkdir(parents=True)
    np.save(rank / "dump_tensor_data" / "x.npy", np.ones((2, 3), np.float32))
    contents: dict[str, Any] = {
        "dump.json": {**HEAD, "data": RECORDS},
        "stack.json": {"0": [list(RECORDS), [FRAME, FRAME]]},
        "source.json": {"/home/me/train.py": {"6": "def forward(x):", "7": "    y = f(x)", "8": "    return y"}},
        "construct.json": {**dict.fromkeys(RECORDS, "Module.a.Linear.forward.0"), "Module.a.Linear.forward.0": None},
        "run.json": {"msprobe": "0.1.0", "settings": {"task": "statistics"}, "first_batch": [TENSOR]},
        "training.json": {"events": [UPDATE]},
        "debug.json": {**HEAD, "data": {"x.0": TENSOR, "y.0": {"a": [1, TENSOR]}}},
    }
    for name, content in contents.items():
        (rank / name).write_text(json.dumps(content))
    return [*(rank / name for name in contents), rank / "dump_tensor_data" / "x.npy"]


def make_targets(root: Path) -> list[Target]:
    return [*_dumps(root), *_journals(root), *_tensors(root / "tensors"), *_tables(root)]


def _dumps(root: Path) -> list[Target]:
    read = write_dump(root / "dump")
    shown = write_dump(root / "show")
    changed = write_dump(root / "compare" / "changed")
    write_dump(root / "compare" / "right")
    np.save(rank_of(root / "compare" / "right") / "dump_tensor_data" / "x.npy", np.full((2, 3), 2, np.float32))
    for name in ("a", "b"):
        write_dump(root / "mapped" / name)
    for option, text in MAPPINGS.items():
        (root / "mapped" / f"map{option}.yaml").write_text(text)
    return [
        Target("dump", read_dump, root / "dump", *read, weight=2),
        Target("show, overflow", show, root / "show", *shown, weight=2),
        Target("compare", compare, root / "compare", *changed, weight=6),
        Target("compare, mapping files", compare_mapped, root / "mapped", *(root / "mapped").glob("*.yaml")),
    ]


def _journals(root: Path) -> list[Target]:
    lines: list[Any] = [["head", {**HEAD, "format": 1, "extra_info": True}], ["stack", 0, [FRAME]]]
    lines += [["record", name, None, 0, record] for name, record in RECORDS.items()]
    lines += [["begin", 1, "Torch.exp.0.forward", None, 0, {"input_args": [TENSOR]}], ["training", UPDATE]]
    lines += [
        ["source", "/home/me/train.py", {"7": "y = f(x)"}],
        ["place", "Torch.a.0.forward", None],
        ["debug", "x.0", TENSOR],
        ["drop", 1],
    ]
    targets = []
    for name, read in (("journal, recovered", recover_dump), ("journal, read", read_dump)):
        rank = rank_of(root / name)
        rank.mkdir(parents=True)
        (rank / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        targets.append(Target(name, read, root / name, rank / "journal.jsonl"))
    return targets


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


def _tables(root: Path) -> list[Target]:
    table, names, config, stage = root / "results.csv", root / "names.yaml", root / "config.json", root / "stage"
    table.write_text(",".join(RESULT_COLUMNS) + "\nTorch.relu.0,pass,SKIP,\n" * 5)
    names.write_text("tensor:\n  - add\n  - 'mul'\ntorch: [relu, {a: 1}]\n? x\n: &a [1.5, 2024-01-01]\n")
    config.write_text(
        json.dumps({"task": "statistics", "level": "mix", "dump_path": "x", "rank": [0], "step": ["0-3"],
                    "statistics": {"scope": [], "list": ["relu"], "data_mode": ["all"], "summary_mode": "md5"},
                    "tensor": {"list": [], "online_run_ut": False, "host": "a", "port": 5}})
    )  # fmt: skip
    stage.mkdir()
    row = ["Torch.relu.0.forward.output.0", "torch.float64", "torch.float16", "[2, 3]", "1.0", "0.0", *["1.0"] * 3]
    row += ["0.0"] * (len(DETAIL_COLUMNS) - len(row) - 2) + ["pass", ""]
    for name in ("npu.csv", "gpu.csv"):
        lines = [",".join(DETAIL_COLUMNS), ",".join(f'"{cell}"' for cell in row)]
        (stage / name).write_text("\n".join(lines) + "\n")
    return [
        Target("results", lambda path: read_csv(path, RESULT_COLUMNS), table, table),
        Target("yaml", read_yaml, names, names),
        Target("config.json", lambda path: load("pytorch", path), config, config),
        Target("api_precision_compare", second_stage, stage, stage / "npu.csv", stage / "gpu.csv"),
    ]
