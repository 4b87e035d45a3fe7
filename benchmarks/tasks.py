"""The cost of overflow_check, free_benchmark and live `precision` in a step without faults, against the bare step.

python benchmarks/tasks.py                       all cases
python benchmarks/tasks.py --only overflow_check one case; may be repeated
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass

import tables
from lockstep import Case, Variant, measure

MODES = {"improve_precision": 4.0, "add_noise": 4.0, "bit_noise": 5.0, "no_change": 3.0}
OVERFLOW_AIM = 1.25


@dataclass(frozen=True)
class TaskCase(Case):
    """A case with another task than statistics and tensor."""

    task: str = "overflow_check"
    section: str = "{}"
    bf16: bool = False
    precision: str = ""

    @property
    def name(self) -> str:
        return self.mode

    def arguments(self) -> list[str]:
        options = ["--task", self.task, "--level", self.level, "--section", self.section, "--layers", str(self.layers)]
        options += ["--precision", self.precision] if self.precision else []
        return [*options, *(["--bf16"] if self.bf16 else [])]


def cases(layers: int) -> list[tuple[TaskCase, float]]:
    found = []
    for level in ("L1", "L0", "mix"):
        name = "overflow_check" if level == "L1" else f"overflow_check/{level}"
        section = json.dumps({"overflow_nums": -1})
        found.append((TaskCase(level, name, layers, section=section), OVERFLOW_AIM if level == "L1" else 0.0))
    for formats in ("", "fp8-e4m3", "mxfp8"):
        name = f"statistics/{formats or 'no format'}"
        found.append((TaskCase("L0", name, layers, task="statistics", precision=formats), 0.0))
    for mode, aim in MODES.items():
        section = json.dumps({"pert_mode": mode, "fuzz_device": "npu"})
        found.append((TaskCase("L1", mode, layers, task="free_benchmark", section=section, bf16=True), aim))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[case.name for case, _ in cases(1)])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    variants = [Variant(name, role, sys.executable) for name, role in (("bare", "bare"), ("ours", "ours"))]
    print(tables.machine())
    rows, failed = [], False
    for case, aim in cases(args.layers):
        if args.only and case.name not in args.only:
            continue
        measurements = measure(case, variants, args.rounds, args.threads)
        bare, ours = measurements["bare"], measurements["ours"]
        trouble = bare.error or ours.error
        if not trouble and ours.losses != bare.losses:
            trouble = "the losses differ from the bare run's"
        ratios = ours.ratios(bare)
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else "-"
        failed = failed or bool(trouble)
        rows.append(
            [
                case.name,
                tables.milliseconds(bare.median_cpu()),
                tables.number(ours.ratio(bare)),
                spread,
                tables.number(aim or None),
                trouble or "losses bit-identical",
            ]
        )
    print(tables.table(["case", "bare ms", "ours", "range", "aim", "check"], rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
