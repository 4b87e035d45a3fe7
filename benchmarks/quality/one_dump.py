"""Faults for the tools that read one dump, on the same models: `msprobe overflow` and `msprobe run_ut`.

python benchmarks/quality/one_dump.py [overflow | run_ut]     about a minute on two idle cores

An overflow is right where the call that produced it is named with its module; run_ut is right where it fails the calls
whose kernel was wrong, in the right direction, and no others. Clean runs, some with masks of -inf, report nothing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from edits import wrap
from kernels import faulty_kernel
from training import Experiment, Plant, Recipe, run

from msprobe.cli import main as msprobe

EAGER = {"attn_implementation": "eager"}


@dataclass(frozen=True)
class OneDump:
    """`call` is a pattern of the name that must be reported; empty where nothing may be."""

    tool: str
    model: str
    name: str
    plant: Optional[Plant] = None
    call: str = ""
    module: str = ""
    config: str = "{}"


def applied(path: str, function: Callable[[Any], Any]) -> Plant:
    """The output of a module goes through a function."""

    def plant(run: Experiment) -> None:
        wrap(run.module(path), lambda forward, *args, **kwargs: function(forward(*args, **kwargs)))

    return plant


L1 = "model.layers.1"
# fmt: off
CASES = [
    OneDump("overflow", "llama", "a factor that is too large", applied(f"{L1}.mlp.down_proj", lambda x: x * 1e38),
            r"Tensor\.pow\.\d+\.forward", "model.norm"),
    OneDump("overflow", "gpt2", "times infinity", applied("transformer.h.1.mlp", lambda x: x * float("inf")),
            r"Module\.transformer\.h\.1\.mlp\.GPT2MLP\.forward\.0", "transformer.h.1.mlp"),
    OneDump("overflow", "bert", "log of negative numbers", applied("bert.encoder.layer.1.intermediate", torch.log),
            r"Torch\.log\.\d+\.forward", "bert.encoder.layer.1.intermediate"),
    OneDump("overflow", "vit", "root of negative numbers", applied("vit.layers.0.mlp", torch.sqrt),
            r"Torch\.sqrt\.\d+\.forward", "vit.layers.0.mlp"),
    OneDump("overflow", "resnet", "division by zero", applied("blocks.1.bn1", lambda x: x / (x - x)),
            r"Tensor\.__truediv__\.\d+\.forward", "blocks.1.bn1"),
    OneDump("overflow", "qwen3", "beyond float16", applied(f"{L1}.mlp", lambda x: (x * 1e9).half().float()),
            r"Tensor\.half\.\d+\.forward", f"{L1}.mlp"),
    OneDump("overflow", "opt", "gradient of a root at zero",
            applied("model.decoder.layers.1.fc2", lambda x: x + torch.sqrt(x * 0)),
            r"Torch\.sqrt\.\d+\.backward", "model.decoder.layers.1.fc2"),
    OneDump("overflow", "t5", "gradient of a root at zero, after a log(0) that is discarded",
            applied("decoder.block.1.layer.2.DenseReluDense.wo", lambda x: x + torch.sqrt(x * 0)),
            r"Torch\.sqrt\.\d+\.backward", "decoder.block.1.layer.2.DenseReluDense.wo"),
    *(OneDump("overflow", model, "clean") for model in ("llama", "deepseek_v3", "mamba", "resnet", "whisper")),
    *(OneDump("overflow", model, "clean, eager", config=json.dumps(EAGER)) for model in ("gpt2", "bert", "opt")),
    OneDump("run_ut", "llama", "silu 5%", faulty_kernel(f"{L1}.mlp.act_fn", "silu", 1.05),
            r"Functional\.silu\.1\.forward"),
    OneDump("run_ut", "llama", "silu backward 5%", faulty_kernel("model.layers.0.mlp.act_fn", "silu_backward", 1.05),
            r"Functional\.silu\.0\.backward"),
    OneDump("run_ut", "gpt2", "tanh 1%", faulty_kernel("transformer.h.0.mlp.act", "tanh", 1.01),
            r"Torch\.tanh\.0\.forward"),
    OneDump("run_ut", "resnet", "relu 2%", faulty_kernel("blocks.1.act", "relu", 1.02),
            r"Functional\.relu\.[23]\.forward"),
    OneDump("run_ut", "unet", "silu 0.1%", faulty_kernel("middle", "silu", 1.001), r"Functional\.silu\.\d+\.forward"),
    *(OneDump("run_ut", model, "clean") for model in ("llama", "gpt2", "resnet", "bert")),
]
# fmt: on


def judge(case: OneDump, folder: Path) -> str:
    """What is wrong with the answer; empty where it is right."""
    dump = folder / "dump"
    task = "statistics" if case.tool == "overflow" else "tensor"
    run(case.model, json.loads(case.config), Recipe(task=task, steps=1, stop_first=True), case.plant, dump)
    return _judge_overflow(case, dump) if case.tool == "overflow" else _judge_checks(case, dump, folder / "out")


def _judge_overflow(case: OneDump, dump: Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        msprobe(["overflow", str(dump), "--json"])
    found = json.loads(printed.getvalue().splitlines()[-1])
    producer = found["producer"]
    if not case.call:
        return "" if not found["overflows"] and producer is None else f"a clean run was reported: {producer}"
    if producer is None:
        return f"no producer is named ({found['overflows']} overflows)"
    path = ".".join(re.sub(r"\.(forward|backward)\.\d+$", "", producer["module"] or "").split(".")[1:-1])
    right = re.fullmatch(case.call, producer["name"]) and path == case.module
    return "" if right else f"{producer['name']} in {producer['module']} is named"


def _judge_checks(case: OneDump, dump: Path, out: Path) -> str:
    out.mkdir()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        msprobe(["run_ut", "-api_info", str(dump), "-o", str(out), "--jobs", "2"])
    failed = set()
    for path in out.rglob("accuracy_checking_result_*.csv"):
        for row in csv.DictReader(path.read_text().splitlines()):
            for direction in ("Forward", "Backward"):
                if row[f"{direction} Test Success"] in ("error", "warning"):
                    failed.add(f"{row['API Name']}.{direction.lower()}")
    if not case.call:
        return "" if not failed else f"a clean run was reported: {sorted(failed)}"
    if not failed:
        return "nothing failed"
    wrong = [name for name in sorted(failed) if not re.fullmatch(case.call, name)]
    return f"other calls failed: {wrong}" if wrong else ""


def main(tools: list[str]) -> int:
    torch.set_num_threads(1)
    cases = [case for case in CASES if not tools or case.tool in tools]
    right = 0
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="quality-") as folder:
            problem = judge(case, Path(folder))
        right += not problem
        print(f"{'right' if not problem else 'WRONG'}  {case.tool:8} {case.model}/{case.name}  {problem}", flush=True)
    print(f"{right} of {len(cases)} right")
    return 0 if right == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
