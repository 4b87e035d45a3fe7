"""Compiled code: faults are planted in Inductor, `check_compiled` is asked, and clean models must give no finding.

python benchmarks/compiled/run.py                    everything; about half an hour on two idle cores
python benchmarks/compiled/run.py --part faults      twelve planted faults, and six of other kinds
python benchmarks/compiled/run.py --part clean       ten clean models, in fp32 and bf16
python benchmarks/compiled/run.py --part pairing     open regions against eager dumps of five models
python benchmarks/compiled/run.py --part cost        closed, open and idle, and the runs of a check
python benchmarks/compiled/run.py --only gelu        cases whose name has this text
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from faults import FAULTS, Fault
from models import CLEAN, make
from more_faults import MORE

from msprobe.pytorch import check_compiled

PARTS = ("faults", "clean", "pairing", "cost")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this text")
    args = parser.parse_args()
    good = True
    for part in args.part or PARTS:
        print(f"\n### {part}", flush=True)
        good = globals()[f"run_{part}"](args.only) and good
    return 0 if good else 1


def run_faults(only: str) -> bool:
    found = [check_fault(fault) for fault in (*FAULTS, *MORE) if only in fault.name]
    print(f"{sum(found)} of {len(found)} planted faults are named at their node and line, and reproduced alone")
    return all(found)


def check_fault(fault: Fault) -> bool:
    """Whether the node, the line and the cause are named, and the reproducer shows the fault."""
    begin = time.monotonic()
    torch._dynamo.reset()
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as directory, fault.plant():
        compiled = torch.compile(fault.model(), dynamic=fault.dynamic or None)
        answer = check_compiled(compiled, *fault.inputs(), more_inputs=fault.more_inputs(), directory=directory)
        problems = list(compare(fault, answer, Path(directory)))
        runs = max((region.runs for region in answer.regions), default=0)
    print(
        f"{'ok  ' if not problems else 'FAIL'} {fault.name:28} {runs:4.1f} runs {time.monotonic() - begin:5.0f} s",
        flush=True,
    )
    for problem in problems:
        print(f"       {problem}")
    if problems:
        print(answer, flush=True)
    return not problems


def compare(fault: Fault, answer, directory: Path):
    if len(answer.findings) != 1:
        yield f"{len(answer.findings)} findings, expected 1"
        return
    finding = answer.findings[0]
    if fault.node not in finding.code.partition("=")[2].partition("(")[0] or fault.line not in finding.source:
        yield f"named {finding.code} at {finding.source}"
    if finding.backward != fault.backward:
        yield f"named the {'backward' if finding.backward else 'forward'}"
    if fault.cause not in finding.why:
        yield f"cause {finding.why!r}, expected {fault.cause!r}"
    if run_reproducer(finding.reproducer) != 1:
        yield "the reproducer does not show it"


def run_reproducer(path: str) -> int:
    """The exit code of the reproducer, in this process: here the fault is planted."""
    scope = {"__name__": "reproducer", "__file__": path}
    default = torch.get_default_dtype()
    torch._dynamo.reset()
    try:
        exec(compile(Path(path).read_text(), path, "exec"), scope)
        return int(scope["main"]())
    finally:
        torch.set_default_dtype(default)


def run_clean(only: str) -> bool:
    good = []
    for name in CLEAN:
        for dtype in (torch.float32, torch.bfloat16):
            if only in name:
                good.append(check_clean(name, dtype))
    print(f"{sum(good)} of {len(good)} clean runs without a finding")
    return all(good)


def check_clean(name: str, dtype: torch.dtype) -> bool:
    begin = time.monotonic()
    torch._dynamo.reset()
    model, batch = make(name, dtype)
    answer = check_compiled(model, batch)
    unknown = [region.error for region in answer.regions if region.error]
    good = answer.ok and not unknown and bool(answer.regions)
    kind = str(dtype).removeprefix("torch.")
    print(
        f"{'ok  ' if good else 'FAIL'} {name:12} {kind:9} {len(answer.regions)} graphs "
        f"{max((region.runs for region in answer.regions), default=0):4.1f} runs {time.monotonic() - begin:5.0f} s",
        flush=True,
    )
    if not good:
        print(answer, flush=True)
    return good


def run_script(script: str, only: str) -> bool:
    command = [sys.executable, str(Path(__file__).with_name(script)), *([only] if only else [])]
    return subprocess.run(command, env=dict(os.environ), check=False).returncode == 0


def run_pairing(only: str) -> bool:
    return run_script("pairing.py", only)


def run_cost(only: str) -> bool:
    return run_script("cost.py", only)


if __name__ == "__main__":
    sys.exit(main())
