"""`msprobe prove`: runs a script with the golden result in place of the blamed call: is it really the cause?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.cli.again import Answer, run_and_answer
from msprobe.cli.run import add_script, split_module

if TYPE_CHECKING:
    from msprobe.rerun.launch import Script

EPILOG = """example:
  msprobe prove --golden golden_dump train.py
  msprobe prove --golden golden_dump --target target_dump -o proof train.py
  msprobe prove --golden golden_dump --number accuracy=0.93 train.py
  msprobe prove --golden golden_dump --call Functional.softmax.3.forward train.py
  the golden dump needs the tensors of the blamed call (task tensor); if it has none, msprobe says how to collect just
  these. All words after SCRIPT or MODULE are arguments of the script. Only for PyTorch scripts.
exit code: 0 proved, 1 not proved or not the cause, 2 failed"""
_OPTIONS = ("--golden", "--target", "--tensors", "--call", "--most", "--number", "-o", "--output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "msprobe prove --golden DIR [options] SCRIPT ...\n       msprobe prove --golden DIR [options] -m MODULE ..."
    )
    parser.epilog = EPILOG
    parser.add_argument("--golden", metavar="DIR", required=True, help="the dump of the good run")
    parser.add_argument("--target", metavar="DIR", help="a dump of this script; without it, the script runs once more")
    parser.add_argument("--tensors", metavar="DIR", help="a second dump of the good run, with tensors of the call")
    parser.add_argument("--call", metavar="NAME", default="", help="graft this call, not the origin of compare")
    parser.add_argument("--most", metavar="N", type=int, default=3, help="the most causes to look for; default 3")
    parser.add_argument(
        "--number", metavar="TEXT=VALUE",
        help="the share of each cause in the last number that the script prints after TEXT, in place of the loss; "
        "VALUE is that of the good run. The script then runs to its end",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the answer as JSON; the script prints to stderr")
    parser.add_argument("-o", "--output", metavar="DIR", help="keep the dumps and proof.json in this new directory")
    add_script(parser)


def split_words(words: Sequence[str]) -> Sequence[str]:
    return split_module(words, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import json_text
    from msprobe.report.terminal import announce
    from msprobe.rerun.printed import parse_number
    from msprobe.rerun.prove import PROVED, Request, prove

    if args.most < 1:
        raise DumpError(f"--most is {args.most}; give 1 or more")
    number = parse_number(args.number) if args.number is not None else None

    def ask(script: Script, directory: Path) -> tuple[Answer, bool]:
        target = Path(args.target) if args.target else None
        tensors = Path(args.tensors) if args.tensors else None
        request = Request(script, Path(args.golden), directory, target, tensors, args.call, args.most, number)
        proof = prove(request, announce)
        if args.output:
            text = json_text("prove", proof.summary(), indent=1)
            (directory / "proof.json").write_text(text, encoding="utf-8")
            (directory / "proof.json").chmod(0o640)
        return proof, proof.verdict == PROVED

    return run_and_answer("prove", args, ask)
