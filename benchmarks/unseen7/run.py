"""Makes the dumps of all pairs, checks that they are what they claim, compares each pair once.

python benchmarks/unseen7/run.py check      trains both runs of each pair with dumps; prints doubtful pairs
python benchmarks/unseen7/run.py compare    compares the dumps; writes results.json beside the dumps
                                            (the results.json here is that of the first comparison)
"""

import contextlib
import hashlib
import io
import json
import os
import random
import sys
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from programs import PROGRAMS, Options

from msprobe.pytorch import PrecisionDebugger

HERE = Path(__file__).parent
WORK = Path(os.environ.get("UNSEEN7", "/tmp/unseen7"))


def key(program, options):
    return program + "_" + hashlib.md5(json.dumps(options, sort_keys=True).encode()).hexdigest()[:10]


class Lazy:
    """A debugger that exists only if the program drives it; the trainers make their own from the settings."""

    def __init__(self, settings):
        self.settings, self.debugger = settings, None

    def __getattr__(self, name):
        if self.debugger is None:
            self.debugger = PrecisionDebugger(**self.settings)
        return getattr(self.debugger, name)


def in_child(work, log):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    code = 1
    try:
        with log.open("w") as f, contextlib.redirect_stdout(f), contextlib.redirect_stderr(f):
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(code)


def make(program, options):
    name = key(program, options)
    if (WORK / f"{name}.pt").exists():
        return name

    def work():
        torch.manual_seed(0)
        settings = {"dump_path": str(WORK / name), "task": "statistics", "level": "mix", "step": [0, 1]}
        losses, model = PROGRAMS[program](Options(options), Lazy(settings))
        state = {n: v.detach().double() for n, v in model.state_dict().items()}
        torch.save((losses, state), WORK / f"{name}.pt")

    if in_child(work, WORK / f"{name}.log"):
        print("FAILED", program, options, (WORK / f"{name}.log").read_text()[-600:])
    return name


def distance(a, b):
    """The larger relative difference of losses and final weights (those of equal name)."""
    (la, sa), (lb, sb) = (torch.load(WORK / f"{n}.pt") for n in (a, b))
    loss = max((abs(x - y) / (abs(y) + 1e-9) for x, y in zip(la, lb)), default=0.0)
    common = [n for n in sa if n in sb and sa[n].shape == sb[n].shape]
    weight = max(((sa[n] - sb[n]).norm() / (sb[n].norm() + 1e-9)).item() for n in common)
    return loss, weight


def check():
    WORK.mkdir(parents=True, exist_ok=True)
    for pair in json.loads((HERE / "answers.json").read_text()):
        a, b = make(pair["program"], pair["target"]), make(pair["program"], pair["golden"])
        try:
            loss, weight = distance(a, b)
        except Exception as e:
            print("???", pair["name"], repr(e)[:100])
            continue
        doubtful = max(loss, weight) < 1e-4 if pair["kind"] == "fault" else (loss > 1e-5 or weight > 1e-4)
        if doubtful or "-v" in sys.argv:
            print(f"{pair['kind']} {pair['name']}: loss {loss:.2g}, weights {weight:.2g}{' ?' if doubtful else ''}")


def compare():
    from msprobe.cli import main

    results = {}
    only = sys.argv[2:]
    stored = WORK / "results.json"
    if only and stored.exists():
        results = json.loads(stored.read_text())
    pairs = json.loads((HERE / "answers.json").read_text())
    random.Random(7).shuffle(pairs)  # what is done when the time is over is a fair sample
    for pair in pairs:
        if only and pair["name"] not in only:
            continue
        a, b = (str(WORK / key(pair["program"], pair[side])) for side in ("target", "golden"))
        file = WORK / f"{pair['name']}.txt"

        def work(a=a, b=b, file=file):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                try:
                    code = main(["compare", a, b])
                except SystemExit as e:
                    code = e.code
            file.write_text(json.dumps([code, out.getvalue()]))

        file.unlink(missing_ok=True)
        in_child(work, WORK / f"{pair['name']}.log")
        code, text = json.loads(file.read_text()) if file.exists() else (None, "")
        head = text.split("\nRows:")[0].replace(str(HERE) + "/", "")
        rows = next((x for x in text.splitlines() if x.startswith("Rows:")), "")
        results[pair["name"]] = {"exit": code, "text": head[:900] + "\n" + rows}
        stored.write_text(json.dumps(results, indent=0) + "\n")


if __name__ == "__main__":
    {"check": check, "compare": compare}[sys.argv[1]]()
