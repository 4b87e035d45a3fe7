"""`make quality`: faults are planted in real models, `msprobe compare` is asked, and its answers are judged.

python benchmarks/quality/run.py                              everything, about five minutes on two idle cores
python benchmarks/quality/run.py --part representative        the part that `make test` runs, about a minute
python benchmarks/quality/run.py --only llama --kind backward some models, some kinds (both may be repeated)
python benchmarks/quality/run.py --only llama --case mask     cases whose name holds "mask"
python benchmarks/quality/run.py --keep DIR                   keeps the dumps; run again, it only compares them
python benchmarks/quality/run.py --write-docs                 everything, into docs/quality.md as well
python benchmarks/quality/run.py --unseen                     the cases in unseen/ instead
python benchmarks/quality/run.py --third                      the cases in third/ instead
python benchmarks/quality/run.py --fourth                     the cases in fourth/ instead

It uses the msprobe of the interpreter that runs it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cases import KINDS, Case
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import report

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
CHUNK = 24
"""Cases that one process runs in a row: enough to pay for its imports, few enough to keep both processes busy."""


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    cases = select(args)
    if not cases:
        sys.exit("No case matches. See --list for all of them.")
    if args.list:
        for case in cases:
            print(f"{case.kind:12} {case.id}")
        return 0
    results = run_all(cases, args)
    print(report.text(results))
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one, _ in results], indent=1))
    if args.write_docs:
        report.write_docs(results)
    return 0 if all(one.good for one, _ in results) else 1


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=__doc__.split("\n", 2)[2],
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="MODEL", help="this model; may be repeated")
    parser.add_argument("--kind", action="append", choices=[*KINDS, "clean"], help="this kind; may be repeated")
    parser.add_argument("--case", action="append", metavar="TEXT", help="cases whose model/name holds this text")
    parser.add_argument("--part", choices=["representative", "all"], default="all", help="all cases, or a part of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every judgement as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep dumps and answers, and use dumps that are there")
    sets = {"dest": "chosen", "action": "store_const"}
    parser.add_argument("--unseen", const="unseen", help="the second set, of other models (unseen/)", **sets)
    parser.add_argument("--third", const="third", help="the third set, of other models again (third/)", **sets)
    parser.add_argument("--fourth", const="fourth", help="the fourth set, of other models and loops (fourth/)", **sets)
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/quality.md")
    return parser.parse_args(arguments)


def load(chosen: str | None = None) -> list[Case]:
    """All cases of the tuned set, or of another one. Imported late: it imports torch and transformers."""
    import clean  # noqa: F401
    import faults  # noqa: F401
    from cases import CLEAN, FAULTS
    from fourth.cases import is_fourth
    from third.cases import is_third
    from unseen.cases import is_unseen

    def set_of(case: Case) -> str | None:
        sets = {"third": is_third, "unseen": is_unseen, "fourth": is_fourth}
        return next((name for name, has in sets.items() if has(case)), None)

    return [case for case in [*FAULTS, *CLEAN] if set_of(case) == chosen]


def select(args: argparse.Namespace) -> list[Case]:
    return [
        case
        for case in load(args.chosen)
        if (not args.only or case.model in args.only)
        and (not args.kind or case.kind in args.kind)
        and (not args.case or any(text in case.id for text in args.case))
        and (args.part == "all" or case.representative)
    ]


def run_all(cases: list[Case], args: argparse.Namespace) -> list[tuple[Any, float]]:
    chunks = split(cases)
    keep = str(args.keep) if args.keep else ""
    jobs = [([case.id for case in chunk], keep, args.chosen) for chunk in chunks]
    results: list[tuple[Any, float]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    context = multiprocessing.get_context("spawn")
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress, context.Manager() as manager:
        done = manager.Queue()
        bar = progress.add_task("cases", total=len(cases))
        with context.Pool(min(args.jobs, len(jobs))) as pool:
            waiting = pool.map_async(work, [(*job, done) for job in jobs], chunksize=1)
            while len(results) < len(cases):
                try:
                    results.append(done.get(timeout=5))
                except queue.Empty:
                    if waiting.ready():
                        waiting.get()  # raises what a process raised
                        break
                progress.update(bar, completed=len(results), description=results[-1][0].case if results else "")
    order = {case.id: place for place, case in enumerate(cases)}
    return sorted(results, key=lambda result: order[result[0].case])


def split(cases: list[Case]) -> list[list[Case]]:
    """Cases of one model together, since they share golden runs; large models first."""
    by_model: dict[str, list[Case]] = {}
    for case in cases:
        by_model.setdefault(case.model, []).append(case)
    chunks = []
    for group in by_model.values():
        group = sorted(group, key=lambda case: case.golden.key)
        chunks += [group[start : start + CHUNK] for start in range(0, len(group), CHUNK)]
    return sorted(chunks, key=len, reverse=True)


def work(job: tuple[list[str], str, str | None, Any]) -> None:
    names, keep, chosen, done = job
    from execute import run_cases

    known = {case.id: case for case in load(chosen)}
    folder = None
    if keep:
        folder = Path(keep) / known[names[0]].model
        folder.mkdir(parents=True, exist_ok=True)
    for result in run_cases([known[name] for name in names], folder):
        done.put(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
