"""Checks, collects and compares the cases of a set. Every run of a program is a process of its own, forked from one
that has imported the frameworks; golden runs with the same text are shared.

    python -m benchmarks.unseen8.run --verify                  without msprobe: has each fault an effect?
    python -m benchmarks.unseen8.run --collect --dumps DIR     makes the dumps
    python -m benchmarks.unseen8.run --compare --dumps DIR     compares each pair once: results.json

`--set unseen9`, `--set unseen10` and `--set unseen11` do so for the later sets; without it, it is the eighth.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Callable

from benchmarks.unseen8.cases import HERE, Case, all_cases

SETS = ("unseen8", "unseen9", "unseen10", "unseen11")
EFFECT_LIMIT = 1e-4
LIMITS = {"float64": 1e-6, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}


def child(work: Callable[[], None], log: Path, seconds: int = 300) -> bool:
    """Runs `work` in a forked process; the log has what it printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        os.dup2(out, 1)
        os.dup2(out, 2)
        import signal

        signal.alarm(seconds)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def execute(source: str, path: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs a program as `python PATH ARGUMENTS` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.argv = [str(path), *arguments]
    os.chdir(path.parent)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module.__dict__


def ranks(world: int, port: int, work: Callable[[], None], log: Path) -> bool:
    """Runs `work` once per rank, side by side."""
    if world == 1:
        return child(work, log)
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            os._exit(0 if child(work, log.with_suffix(f".{rank}.log")) else 1)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return not any(codes)


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def world_of(source: str) -> int:
    found = re.search(r"^# world (\d+)$", source, re.M)
    return int(found.group(1)) if found else 1


# --- without msprobe -------------------------------------------------------------------------------------------------


def without_msprobe(source: str) -> str:
    callback = "lightning_callback" if "import lightning" in source else "trainer_callback"
    source = source.replace(
        "from msprobe.pytorch import PrecisionDebugger", "from benchmarks.unseen8.off import PrecisionDebugger"
    )
    return source.replace(
        "from msprobe.pytorch import MsprobeCallback",
        f"from benchmarks.unseen8.off import {callback} as MsprobeCallback",
    )


def outcome(source: str, wide: bool, folder: Path) -> dict[str, Any]:
    """Losses and weights of a run without msprobe, in float32 or in float64."""
    import torch

    path = folder / key_of(source, str(wide)) / "train.py"
    result = path.parent / "outcome.pt"
    if not result.exists():

        def work() -> None:
            from benchmarks.unseen8 import off

            if wide:
                torch.set_default_dtype(torch.float64)
            space = execute(without_msprobe(source), path, [str(path.parent / "none"), "statistics"])
            models = space["models"] if "models" in space else [space["model"]]
            end = {f"{i}.{name}": value for i, one in enumerate(models) for name, value in one.state_dict().items()}
            if int(os.environ.get("RANK", 0)) == 0:
                torch.save({"losses": space.get("losses", []), "end": end, "start": off.START}, result)

        port = 29000 + int(key_of(source, str(wide)), 16) % 3000
        if not ranks(world_of(source), port, work, path.parent / "log"):
            raise RuntimeError(f"a program failed: {path.parent}/log")
    return dict(torch.load(result))


def difference(target: dict[str, Any], golden: dict[str, Any], losses_only: bool) -> float:
    """The larger of the relative difference of a loss, and that of the weights measured by what training changed."""
    import torch

    worst = 0.0
    for one, other in zip(target["losses"], golden["losses"]):
        if not (math.isfinite(one) and math.isfinite(other)):
            return math.inf
        worst = max(worst, abs(one - other) / max(abs(other), 1e-12))
    ends, starts = golden["end"], golden["start"] or target["start"]

    def flat(values: dict[str, Any], names: list[str]) -> Any:
        return torch.cat([values[name].double().flatten() for name in names])

    names = [name for name in ends if name in target["end"] and ends[name].shape == target["end"][name].shape]
    if len(names) == len(ends) and not losses_only:
        known = [name for name in names if name in starts]
        moved = (flat(ends, known) - flat(starts, known)).norm() if known else flat(ends, names).norm()
        apart = (flat(target["end"], names) - flat(ends, names)).norm()
        if not math.isfinite(float(apart)):
            return math.inf
        worst = max(worst, float(apart / moved.clamp(min=1e-12)))
    return worst


def verify(cases: list[Case], folder: Path, data: Path) -> None:
    verified = data / "verified.json"
    figures = json.loads(verified.read_text()) if verified.exists() else {}
    for case in cases:
        coarse = "rounding" in case.settings
        wide = not case.fault and not coarse
        try:
            apart = difference(outcome(case.target, wide, folder), outcome(case.golden, wide, folder), coarse)
        except RuntimeError as problem:
            print(f"FAILED {case.name}: {problem}", flush=True)
            continue
        if case.fault:
            good = apart > EFFECT_LIMIT
        else:
            good = apart < LIMITS[case.settings.get("rounding", "float64")]
        figures[case.name] = {"difference": f"{apart:.3g}", "in": "float64" if wide else "as run"}
        if not good:
            print(f"BAD {case.name}: {apart:.3g}", flush=True)
    verified.write_text(
        json.dumps({case.name: figures[case.name] for case in all_cases(data) if case.name in figures}, indent=1) + "\n"
    )
    print(len(cases), "cases checked")


# --- with msprobe ----------------------------------------------------------------------------------------------------


def places(case: Case, dumps: Path) -> tuple[Path, Path]:
    golden = dumps / "golden" / f"{case.program}-{key_of(case.golden, case.task)}"
    return dumps / "target" / case.name, golden


def collect(cases: list[Case], dumps: Path) -> None:
    failed = 0
    for case in cases:
        for source, place in zip((case.target, case.golden), places(case, dumps)):
            if (place / "done").exists():
                continue

            def work(source: str = source, place: Path = place, task: str = case.task) -> None:
                execute(source, place / "train.py", [str(place / "dump"), task])

            port = 32000 + int(key_of(source, case.name), 16) % 3000
            if ranks(world_of(source), port, work, place / "log"):
                (place / "done").touch()
            else:
                failed += 1
                print(f"FAILED {place}", flush=True)
    print(len(cases), "cases collected,", failed, "runs failed")


def compare_all(cases: list[Case], dumps: Path, data: Path) -> None:
    """Compares each pair once; results.json has the answers of all pairs that were compared so far."""
    from benchmarks.unseen8.answers import plain

    for case in cases:
        target, golden = places(case, dumps)
        out = target / "answer.json"

        def work(target: Path = target, golden: Path = golden, out: Path = out) -> None:
            out.write_text(json.dumps(plain(target / "dump", golden / "dump")))

        if out.exists():
            print(case.name, "was compared before; remove", out, "to compare it again", flush=True)
            continue
        if not child(work, target / "compare.log", seconds=900):
            text = (target / "compare.log").read_text()[-2000:]
            out.write_text(json.dumps({"verdict": "crashed", "origin": None, "text": text}))
        print(case.name, json.loads(out.read_text())["verdict"], flush=True)
    answers = {case.name: places(case, dumps)[0] / "answer.json" for case in all_cases(data)}
    results = {name: json.loads(path.read_text()) for name, path in answers.items() if path.exists()}
    for result in results.values():
        result["text"] = result["text"].split("\nRows that differ")[0].replace(str(dumps), "DUMPS")
        result.pop("origin")
    (data / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def write_answers(cases: list[Case], data: Path) -> None:
    figures = json.loads((data / "verified.json").read_text())
    answers = {
        case.name: {
            "program": case.program,
            "fault": case.fault,
            **{key: case.settings[key] for key in ("kind", "place", "cause") if key in case.settings},
            **({"lines": list(case.lines)} if case.fault else {}),
            **({"beside": list(case.beside)} if case.fault and case.beside else {}),
            **({"rewrites": [*case.beside]} if not case.fault and case.beside else {}),
            "task": case.task,
            "verified": figures.get(case.name),
        }
        for case in cases
    }
    (data / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    faults = [case for case in cases if case.fault]
    beside = sum(bool(case.beside) for case in faults)
    programs = len({case.program for case in cases})
    print(f"{programs} programs, {len(faults)} faults ({beside} beside rewrites), {len(cases) - len(faults)} clean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("verify", "answers", "collect", "compare"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--dumps", type=Path, default=Path("unseen_dumps"))
    parser.add_argument("--set", default="unseen8", choices=SETS, help="the set of cases")
    parser.add_argument("--only", default="", help="cases of these programs, separated by commas")
    options = parser.parse_args()
    data = HERE.parent / options.set
    cases = [case for case in all_cases(data) if not options.only or case.program in options.only.split(",")]
    dumps = options.dumps.resolve()
    if options.answers:
        write_answers(cases, data)
    if options.verify or options.collect:
        import accelerate  # noqa: F401
        import lightning.pytorch  # noqa: F401
        import peft  # noqa: F401
        import torch
        import transformers  # noqa: F401

        torch.set_num_threads(1)
    if options.verify:
        verify(cases, dumps / "verify", data)
    if options.collect:
        collect(cases, dumps)
    if options.compare:
        compare_all(cases, dumps, data)


if __name__ == "__main__":
    main()
