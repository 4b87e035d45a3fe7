"""`make parallel`: parallel layouts against one device, clean and with planted faults, without any option.

python -m benchmarks.parallel.run                        everything
python -m benchmarks.parallel.run --only tensor2         some layouts (may be repeated)
python -m benchmarks.parallel.run --case reduced_twice   cases whose name holds this text
python -m benchmarks.parallel.run --mode statistics      tensor, statistics (default: both)
python -m benchmarks.parallel.run --case against         layouts against each other
python -m benchmarks.parallel.run --keep DIR             keeps the dumps; run again, it only compares them
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.parallel.cases import CASES, CLEAN, KINDS, Case
from benchmarks.parallel.judge import BROKEN, Judgement, judge
from benchmarks.parallel.pairs import PAIRS
from benchmarks.parallel.strip import strip_tensors

MODES = ("tensor", "statistics")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", metavar="LAYOUT")
    parser.add_argument("--case", action="append", metavar="TEXT")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every judgement as JSON")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args(arguments)
    cases = [
        case
        for case in (*CASES, *PAIRS)
        if (not args.only or case.layout in args.only) and (not args.case or any(text in case.id for text in args.case))
    ]
    if args.list:
        print("\n".join(f"{case.kind:22} {case.id}" for case in cases))
        return 0
    folder = args.keep or Path(tempfile.mkdtemp(prefix="parallel-"))
    modes = tuple(args.mode or MODES)
    results: dict[str, list[Judgement]] = {mode: [] for mode in modes}
    try:
        for mode, found in run_cases(cases, folder, modes, keep=args.keep is not None):
            print(f"{mode:10} {found.case:45} {found.verdict:12} {found.said[:220]}", flush=True)
            results[mode].append(found)
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps({mode: [asdict(one) for one in found] for mode, found in results.items()}))
    return 0 if all(one.is_good for one in results.get("tensor", ())) else 1


def run_cases(cases: list[Case], folder: Path, modes: Sequence[str], keep: bool) -> Iterator[tuple[str, Judgement]]:
    """Each case is run once, with saved tensors; without them its dump is what a run with task statistics writes."""
    from benchmarks.parallel import ranks

    for case in cases:
        names = _golden_name(case), f"{case.layout}-{case.fault or CLEAN}"
        golden, target = (folder / "tensor" / name for name in names)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not _done(golden).exists():
                _record_golden(case, golden)
                _done(golden).touch()
            if not _done(target).exists():
                ranks.record_layout(case.layout, case.fault, target, "tensor", case.steps)
                _done(target).touch()
        except Exception as error:
            yield from ((mode, _broken(case, error)) for mode in modes)
            continue
        for mode in modes:
            yield mode, _judge(case, mode, target, golden)
        if not keep:
            shutil.rmtree(target, ignore_errors=True)
            _done(target).unlink(missing_ok=True)


def _golden_name(case: Case) -> str:
    from benchmarks.parallel import ranks

    single = f"single-{ranks.LAYOUTS[case.layout][1]}"
    return f"{case.golden or single}-{CLEAN if case.golden else case.steps}"


def _record_golden(case: Case, golden: Path) -> None:
    from benchmarks.parallel import ranks

    if case.golden:
        ranks.record_layout(case.golden, "", golden, "tensor", case.steps)
    else:
        ranks.record_single(ranks.LAYOUTS[case.layout][1], golden, "tensor", case.steps)


def _judge(case: Case, mode: str, target: Path, golden: Path) -> Judgement:
    try:
        if mode == "tensor":
            return judge(case, compare(target, golden))
        with tempfile.TemporaryDirectory() as directory:
            plain = Path(directory) / "target", Path(directory) / "golden"
            for dump, copy in zip((target, golden), plain):
                strip_tensors(dump, copy)
            return judge(case, compare(*plain))
    except Exception as error:
        return _broken(case, error)


def _broken(case: Case, error: Exception) -> Judgement:
    return Judgement(case.id, case.layout, case.kind, BROKEN, f"{type(error).__name__}: {error}")


def _done(dump: Path) -> Path:
    """A file that says that a dump is complete."""
    return dump.with_name(dump.name + ".done")


def compare(target: Path, golden: Path) -> dict[str, Any]:
    """What `msprobe compare TARGET GOLDEN --json` prints."""
    from msprobe.cli import main as msprobe

    printed = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        msprobe(["compare", str(target), str(golden), "--json"])
    if not printed.getvalue():
        raise RuntimeError(errors.getvalue()[-500:])
    summary: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
    return summary


def table(results: dict[str, list[Judgement]]) -> str:
    lines = []
    for mode, found in results.items():
        faults = [one for one in found if one.kind != CLEAN]
        clean = [one for one in found if one.kind == CLEAN]
        lines += ["", f"## {mode} mode", "", "| kind | cases | call and rank | kind too |", "|---|---|---|---|"]
        for kind in KINDS[:-1]:
            lines.append(_line(kind, [one for one in faults if one.kind == kind]))
        lines.append(_line("all faults", faults))
        lines += ["", "| layout | clean | faults | call and rank | kind too |", "|---|---|---|---|---|"]
        for layout in dict.fromkeys(one.layout for one in found):
            own = [one for one in faults if one.layout == layout]
            state = next((one.verdict for one in clean if one.layout == layout), "-")
            lines.append(_line(f"{layout} | {state}", own))
        lines += ["", f"{sum(one.is_good for one in clean)} of {len(clean)} clean layouts: same, no finding."]
    return "\n".join(lines)


def _line(name: str, found: list[Judgement]) -> str:
    right, located = sum(one.is_good for one in found), sum(one.is_located for one in found)
    return f"| {name} | {len(found)} | {located} | {right} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
