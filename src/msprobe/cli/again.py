"""`msprobe again`: runs a script twice and says whether it repeats itself, bit for bit; if not, where and why."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol

from msprobe.cli.run import add_script, split_module

if TYPE_CHECKING:
    from msprobe.rerun.launch import Script

EPILOG = """example:
  msprobe again train.py --epochs 1
  msprobe again --fix train.py                      also runs it twice with the remedy, and says whether that helps
  msprobe again --step 0-99 -m mypackage.train
  msprobe again torchrun --nproc_per_node 2 train.py
  msprobe again msrun --worker_num=2 --local_worker_num=2 train.py
  msprobe again -o first train.py; msprobe again --against first/run1/dump train.py
  all words after SCRIPT or MODULE are arguments of the script. A step ends with optimizer.step(); the script is ended
  after the last wanted step. PyTorch, or MindSpore in PYNATIVE mode: there a step ends when the optimizer has run.
exit code: 0 the run repeats itself, 1 it does not, 2 failed"""
_OPTIONS = ("--step", "--level", "--against", "-o", "--output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "msprobe again [options] SCRIPT ...\n       msprobe again [options] -m MODULE ..."
    parser.epilog = EPILOG
    parser.add_argument("--step", default="", metavar="STEPS", help="the steps to compare, such as 0-99; default 0-9")
    parser.add_argument("--level", default="mix", choices=("L0", "L1", "mix"), help="default mix: modules and APIs")
    parser.add_argument("--against", metavar="DIR", help="compare with this dump, with checksums; run the script once")
    parser.add_argument("--fix", action="store_true", help="run the script with the remedy, twice: does it help?")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON; the script prints to stderr")
    parser.add_argument("-o", "--output", metavar="DIR", help="keep the dumps in this new directory")
    add_script(parser)


def split_words(words: Sequence[str]) -> Sequence[str]:
    return split_module(words, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    from msprobe.config import ConfigError, load
    from msprobe.dump.errors import DumpError
    from msprobe.report.terminal import announce
    from msprobe.rerun.again import Request, again

    if args.step:
        try:
            load("pytorch", None, dump_path=".", step=args.step.split(","))  # not only in the process of the script
        except ConfigError:
            raise DumpError(f"--step {args.step} is no list of steps, such as 0-9,20") from None

    def ask(script: Script, directory: Path) -> tuple[Answer, bool]:
        against = Path(args.against) if args.against else None
        answer = again(Request(script, directory, args.step, args.level, against, args.fix), announce)
        return answer, answer.repeats

    return run_and_answer("again", args, ask)


class Answer(Protocol):
    def lines(self) -> list[str]: ...

    def summary(self) -> dict[str, Any]: ...


def run_and_answer(verb: str, args: argparse.Namespace, ask: Callable[[Script, Path], tuple[Answer, bool]]) -> int:
    """Asks about the script of the command line, prints the answer, and returns the exit code of the verb: 0 if the
    answer is the good one. Without `-o`, the directory with the dumps is deleted."""
    from msprobe.report.json_output import print_json
    from msprobe.report.terminal import print_lines

    directory = None
    try:
        script = _script_of(args)
        directory = _make_directory(args.output)
        answer, good = ask(script, directory)
        if args.json:
            print_json(verb, answer.summary())
        else:
            print_lines(answer.lines())
        return 0 if good else 1
    finally:
        if directory is not None and not args.output:
            shutil.rmtree(directory, ignore_errors=True)


def _script_of(args: argparse.Namespace) -> Script:
    """The script of the command line. Raises DumpError if there is none."""
    from msprobe.dump.errors import DumpError
    from msprobe.rerun.launch import Script

    words = args.script[args.script[:1] == ["--"] :] if args.module is None else args.module
    if not words:
        raise DumpError("give a SCRIPT, or -m MODULE, after the options of msprobe")
    script = Script(tuple(words), args.module is not None, quiet=args.json)
    script.check()
    return script


def _make_directory(output: Optional[str]) -> Path:
    """A new directory for the dumps. Never one that has something in it."""
    from msprobe.dump.errors import DumpError

    if not output:
        return Path(tempfile.mkdtemp(prefix="msprobe_again_"))
    directory = Path(output).resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DumpError(f"{output} exists and is not empty: give a new directory")
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    return directory
