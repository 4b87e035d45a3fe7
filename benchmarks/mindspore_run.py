"""The cost of msprobe in a MindSpore training step, compared with the bare step: CPU times, measured in lockstep.

python benchmarks/mindspore_run.py                          every case, some minutes
python benchmarks/mindspore_run.py --only L1/statistics     one case; may be repeated

mindstudio-probe is not measured: its statistics need kernels that exist only on Ascend.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import lockstep
import tables
from lockstep import Case, Variant, measure

from tasks import OVERFLOW_AIM, TaskCase

LAYERS = 2
CASES: list[Case] = [
    Case(level, mode, LAYERS) for mode in ("statistics", "md5", "tensor") for level in ("L0", "L1", "mix")
]
CASES.append(Case(layers=LAYERS, idle=True))

for _level in ("L1", "L0", "mix"):
    CASES.append(TaskCase(_level, f"overflow_check/{_level}", LAYERS, section='{"overflow_nums": -1}'))
for _mode in (
    "add_noise",
    "bit_noise",
    "no_change",
    "to_cpu",
):  # the model is float32: improve_precision has nothing to change
    _section = json.dumps({"pert_mode": _mode, "fuzz_device": "cpu" if _mode == "to_cpu" else "npu"})
    CASES.append(TaskCase("L1", f"free_benchmark/{_mode}", LAYERS, task="free_benchmark", section=_section))
# Our upper limits for the ratios of CPU time.
AIMS = {
    "L0/statistics": 1.3,
    "L1/statistics": 2.2,
    "mix/statistics": 2.5,
    "L0/tensor": 1.5,
    "L1/tensor": 3.0,
    "mix/tensor": 3.3,
    "idle": 1.0,
    "free_benchmark/add_noise": 4.0,
    "free_benchmark/bit_noise": 5.0,
    "free_benchmark/no_change": 3.0,
    "overflow_check/L1": OVERFLOW_AIM,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=15, help="counted rounds a case (15)")
    args = parser.parse_args()
    lockstep.STEP = Path(__file__).with_name("mindspore_step.py")
    variants = [Variant(name, role, sys.executable) for name, role in (("bare", "bare"), ("ours", "ours"))]
    again = Variant("bare again", "bare", sys.executable)
    wrong = []
    print(tables.machine(), flush=True)
    print("| case | bare ms | ours | range | records | tensors | bare again | aim |\n|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if args.only and case.name not in args.only:
            continue
        measurements = measure(case, [*variants, again], args.rounds, threads=2, warmup=3)
        bare, ours = measurements["bare"], measurements["ours"]
        if bare.error or ours.error:
            wrong.append(f"{case.name}: {bare.error or ours.error}")
            continue
        if ours.losses != bare.losses:
            wrong.append(f"{case.name}: the tool changed the training: its losses differ from the bare run's")
        ratios = ours.ratios(bare)
        cells = [
            case.name,
            f"{1000 * (bare.median_cpu() or 0):.1f}",
            f"**{ours.ratio(bare):.2f}**",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            str(len(ours.report["names"])),
            str(ours.report["tensors"]),
            f"{measurements['bare again'].ratio(bare):.2f}",
            str(AIMS.get(case.name, "-")),
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
