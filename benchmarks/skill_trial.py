"""Lays out a trial of `msprobe skill`: 20 cases for an agent that gets only the page and the server.

    python benchmarks/skill_trial.py lay DIR ANSWERS.json     20 directories; the answers go to a file elsewhere
    python benchmarks/skill_trial.py judge DIR ANSWERS.json   reads DIR/case*/REPORT.md, prints how many are right

Each case has bad/train.py with one planted fault, TASK.md, and of the good run only what comes from its machine: two
dumps (statistics and tensors) and the losses. `lay --without-skill` lays out the same cases with the losses only, for
the comparison. Give the agent one case directory at a time,
a shell with msprobe installed (`msprobe mcp . --allow-run` as server), and nothing else of this repository. A report is
right if it names a word of the answer and the changed line's number within two lines.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from pathlib import Path

from check_gate import FAULTS, SCRIPTS

CASES = 20
SEED = 34
TASK = """bad/train.py should train as the good script does, which is on a different machine. It does not: its losses
are wrong. good/losses.txt has the losses of the good run{dumps}. One line of bad/train.py is wrong: find it.
Write REPORT.md: the call or setting that is wrong, its line in bad/train.py as "line N", and the evidence.
"""
DUMPS = ", good/golden its dump with statistics, good/golden_tensors its dump with tensors"


def lay(directory: Path, answers: Path, with_skill: bool) -> None:
    chosen = random.Random(SEED).sample(FAULTS, CASES)
    page = subprocess.run(
        [sys.executable, "-m", "msprobe", "skill"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    known = {}
    for number, fault in enumerate(chosen, 1):
        name = f"case{number:02}"
        good = SCRIPTS[fault.script]
        (directory / name / "bad").mkdir(parents=True)
        (directory / name / "bad" / "train.py").write_text(good.replace(fault.old, fault.new, 1))
        run_good(directory / name / "good", good, with_skill)
        task = "Read SKILL.md first.\n" + TASK.format(dumps=DUMPS) if with_skill else TASK.format(dumps="")
        (directory / name / "TASK.md").write_text(task)
        if with_skill:
            (directory / name / "SKILL.md").write_text(page)
        line = good[: good.index(fault.old)].count("\n") + 1
        known[name] = {"words": fault.words, "line": line, "old": fault.old, "new": fault.new}
    answers.write_text(json.dumps(known, indent=1))
    print(f"{CASES} cases in {directory}; the answers are in {answers}: keep them from the agent")


def run_good(place: Path, text: str, with_dumps: bool) -> None:
    """Runs the good script and keeps its losses and dumps, not the script."""
    place.mkdir()
    script = place / "train.py"
    script.write_text(text.replace("    loss.backward()", "    print(loss.item())\n    loss.backward()", 1))
    losses = subprocess.run([sys.executable, "train.py"], cwd=place, capture_output=True, text=True, check=True).stdout
    (place / "losses.txt").write_text(losses)
    script.write_text(text)
    for task, name in (("statistics", "golden"), ("tensor", "golden_tensors")) if with_dumps else ():
        command = [sys.executable, "-m", "msprobe", "run", "-o", name, "--task", task, "train.py"]
        subprocess.run(command, cwd=place, capture_output=True, check=True)
    script.unlink()


def judge(directory: Path, answers: Path) -> None:
    known = json.loads(answers.read_text())
    right = 0
    for name, answer in known.items():
        report = directory / name / "REPORT.md"
        text = report.read_text(errors="replace") if report.exists() else ""
        lines = [int(one) for one in re.findall(r"lines? (\d+)", text)]
        near = any(abs(line - answer["line"]) <= 2 for line in lines)
        good = near and any(word in text for word in answer["words"])
        right += good
        print(f"{name}: {'right' if good else 'wrong' if text else 'no report'}")
    print(f"{right} of {len(known)} right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("lay", "judge"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--without-skill", action="store_true")
    args = parser.parse_args()
    if args.act == "lay":
        lay(args.directory, args.answers, not args.without_skill)
    else:
        judge(args.directory, args.answers)


if __name__ == "__main__":
    main()
