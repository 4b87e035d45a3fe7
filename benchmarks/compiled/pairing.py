"""Open regions against eager dumps of five models: which records `msprobe compare` pairs without a mapping.

python benchmarks/compiled/pairing.py [MODEL]
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from models import make

from msprobe.pytorch import PrecisionDebugger

MODELS = ("llama", "gpt2", "bert", "convnet", "lstm cell")


def dump(name: str, path: Path, compiled: bool) -> dict[str, Any]:
    """The records of one training step."""
    torch._dynamo.reset()
    model, batch = make(name, torch.float32)
    called = torch.compile(model, backend="eager") if compiled else model
    keys = {"task": "statistics", "level": "mix", "dump_path": str(path), "statistics": {}}
    file = path.with_suffix(".json")
    file.write_text(json.dumps({**keys, "compile": "open" if compiled else "closed"}))
    debugger = PrecisionDebugger(str(file))
    torch.manual_seed(0)
    debugger.start(called)
    called(batch).square().mean().backward()
    debugger.stop()
    debugger.step()
    PrecisionDebugger._current = None
    return json.loads((path / "step0" / "rank" / "dump.json").read_text())["data"]


def record_of(row_name: str) -> str:
    """`Functional.linear.0.forward.input.0` is a value of `Functional.linear.0.forward`."""
    found = re.match(r".*\.(?:forward|backward|parameters_grad)(?:\.\d+)?(?=\.|$)", row_name)
    return found[0] if found else row_name


def compare(directory: Path) -> list[dict[str, Any]]:
    """The rows of `msprobe compare open eager`: no mapping is given."""
    report = directory / "rows.jsonl"
    command = [sys.executable, "-m", "msprobe", "compare", str(directory / "open"), str(directory / "eager")]
    subprocess.run([*command, "--json", str(report)], stdout=subprocess.DEVNULL, check=False)
    return [json.loads(line) for line in report.read_text().splitlines()[1:]]


def main() -> int:
    good = True
    for name in MODELS:
        if sys.argv[1:] and sys.argv[1] not in name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            with contextlib.redirect_stderr(None):
                eager = dump(name, Path(directory) / "eager", compiled=False)
                found = dump(name, Path(directory) / "open", compiled=True)
            rows = compare(Path(directory))
        pairs = {
            (record_of(row["target"]), record_of(row["golden"])) for row in rows if row["target"] and row["golden"]
        }
        paired, partners = {target for target, _ in pairs}, {golden for _, golden in pairs}
        failed = sum(row["verdict"] in ("warning", "error") for row in rows)
        calls = [key for key in eager if not key.startswith("Module.") or key.endswith("parameters_grad")]
        alone = [key for key in calls if key not in partners]
        print(
            f"{name:12} {len(paired)} of {len(found)} records of the open region are paired "
            f"({100 * len(paired) / len(found):.0f}%), {failed} values differ; eager calls without a partner: "
            f"{', '.join(alone) or 'none'}",
            flush=True,
        )
        good = good and len(alone) <= 1 and not failed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
