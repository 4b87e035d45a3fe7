"""Plants each fault of faults.py in a quantised run, compares it with the run that is not quantised, and prints whether
layer and role are named with a true sentence; then ten clean quantised runs, for which nothing may be reported.

    python -m benchmarks.low_precision.run [PART-OF-A-NAME]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import torch
from benchmarks.low_precision.faults import CLEAN, FAULTS, Fault
from benchmarks.low_precision.quantised_model import Plan, Recipe, build, train

from msprobe.compare.comparison import compare
from msprobe.pytorch import PrecisionDebugger


def record(path: Path, recipe: Optional[Recipe], step: int, seed: int = 0, fault: Optional[Fault] = None,
           plan: Optional[Plan] = None) -> Path:  # fmt: skip
    model = build(seed, recipe)
    if fault is not None and fault.setup is not None:
        fault.setup(model)
    if plan is not None and fault is not None:
        model.get_submodule(fault.module).plan = plan
    train(model, seed, step + 1, PrecisionDebugger(dump_path=str(path), task="tensor", level="mix", step=[step]))
    return path


def answer(target: Path, golden: Path) -> Any:
    return compare(target, golden)


def is_named(fault: Fault, sentence: str) -> bool:
    return sentence.startswith(f"{fault.module}: {fault.role}: ") and any(word in sentence for word in fault.words)


def try_fault(fault: Fault, root: Path) -> str:
    """The sentence of the answer."""
    golden = record(root / "golden", fault.golden, fault.step, fault=fault)
    target = record(root / "target", fault.recipe, fault.step, fault=fault, plan=fault.plan())
    origin = answer(target, golden).origin
    return origin.sentence if origin is not None else ""


def try_clean(recipe: Recipe, step: int, seed: int, root: Path) -> Any:
    golden, target = record(root / "golden", None, step, seed), record(root / "target", recipe, step, seed)
    return answer(target, golden)


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    named = 0
    chosen = [fault for fault in FAULTS if wanted in fault.name]
    for fault in chosen:
        with tempfile.TemporaryDirectory() as root:
            sentence = try_fault(fault, Path(root))
        named += is_named(fault, sentence)
        print(f"{'named ' if is_named(fault, sentence) else 'MISSED'}  {fault.name}: {sentence}", flush=True)
    print(f"{named} of {len(chosen)} faults named")
    quiet = 0
    for number, (recipe, step) in enumerate(() if wanted else CLEAN):
        with tempfile.TemporaryDirectory() as root:
            found = try_clean(recipe, step, number, Path(root))
        quiet += found.verdict == "same"
        print(
            f"{recipe.kind} seed {number} step {step}: {found.verdict}: {found.origin and found.origin.sentence}",
            flush=True,
        )
    if not wanted:
        print(f"{quiet} of {len(CLEAN)} clean runs without a report")


if __name__ == "__main__":
    main()
