"""`msprobe precision`: what a low-precision format would do to the products of a recorded model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from msprobe.cli.everything import add_all
from msprobe.cli.run import script_place

EPILOG = """examples:
  msprobe precision ./dump --format nvfp4
  msprobe precision ./dump --format mxfp8,fp8-e4m3 --budget 20dB
  msprobe precision ./dump --format mxfp8 --snippet torchao > keep.py
  msprobe precision --emulate nvfp4,mxfp8 --steps 200 --keep 'blocks.2.*' train.py --epochs 1
the dump: of PyTorch or MindSpore, with task tensor, or with task statistics and "precision": {"formats": [...]} in
config.json
--emulate: runs the script as it is and once for each format, with its Linear modules in that format (forward and both
products of the backward), and compares the losses; only PyTorch
exit code: 0 every product meets the budget (--emulate: all runs ended), 1 some do not, 2 failed"""
_OPTIONS = ("--format", "--budget", "--snippet", "--emulate", "--keep", "--steps", "--run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.usage = (
        "msprobe precision DUMP --format NAMES [--budget DB] [--json | --snippet TARGET] [--all]\n"
        "       msprobe precision --emulate NAMES [--keep MODULE] [--stochastic] [--steps N] [--json] SCRIPT ..."
    )
    parser.add_argument("path", type=Path, nargs="?", metavar="DUMP", help="a dump, or a step or rank directory of one")
    parser.add_argument("--format", dest="formats", metavar="NAMES", help="formats, such as nvfp4 or mxfp8,bf16")
    parser.add_argument("--emulate", metavar="NAMES", help="run SCRIPT with its Linear modules in these formats")
    parser.add_argument(
        "--keep", action="append", metavar="MODULE", help="with --emulate: not these modules, such as 'blocks.2.*'"
    )
    parser.add_argument("--stochastic", action="store_true", help="with --emulate: round the gradients stochastically")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="with --emulate: how many (default 200)")
    parser.add_argument("--run", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    parser.add_argument(
        "--budget", metavar="DB", help="the least SNR of a tensor, such as 20dB; default: 6 dB less than the format "
        "gives for normally distributed numbers",
    )  # fmt: skip
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--json", action="store_true", help="print the answer as JSON")
    only.add_argument(
        "--snippet", choices=("torchao", "te"), help="print the modules to keep in bf16 as code of torchao, or as the "
        "debug configuration of TransformerEngine",
    )  # fmt: skip
    add_all(parser)


def split_words(words: Sequence[str]) -> Sequence[str]:
    """With --emulate, everything from the script on belongs to the script."""
    place = script_place(words, _OPTIONS)
    if not any(word.partition("=")[0] == "--emulate" for word in words[:place]) or place == len(words):
        return words
    return [*words[:place], "--run", *words[place:]]


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError

    if args.emulate is not None:
        return _emulate(args)
    if args.path is None or args.formats is None:
        raise DumpError("give a DUMP and --format NAMES, or --emulate NAMES and a SCRIPT")
    if args.keep or args.stochastic:
        raise DumpError("--keep and --stochastic are for --emulate")
    return _estimate(args)


def _estimate(args: argparse.Namespace) -> int:
    from msprobe.cli.framework import check_framework
    from msprobe.dump.nearby import open_or_explain
    from msprobe.precision.estimate import budget_of, estimate, formats_of
    from msprobe.precision.snippets import snippet
    from msprobe.report.json_output import print_json
    from msprobe.report.precision_terminal import as_json, show_estimate
    from msprobe.report.progress import progress

    forms = formats_of(args.formats)
    budget = None if args.budget is None else budget_of(args.budget)
    dump = open_or_explain(args.path)
    check_framework(args.framework, dump.ranks[0])
    found = estimate(dump, forms, budget, progress)
    if args.json:
        print_json("precision", as_json(args.path, found))
    elif args.snippet:
        print("\n".join(snippet(verdict, args.snippet) for verdict in found.verdicts), end="")
    else:
        show_estimate(args.path, found, args.everything)
    return found.exit_code


def _emulate(args: argparse.Namespace) -> int:
    import tempfile

    from msprobe.dump.errors import DumpError
    from msprobe.precision.estimate import formats_of
    from msprobe.report.json_output import print_json
    from msprobe.report.precision_terminal import show_emulation
    from msprobe.report.terminal import announce
    from msprobe.rerun.emulate import emulate_script
    from msprobe.rerun.launch import Script

    forms = formats_of(args.emulate)
    if args.formats or args.budget or args.snippet:
        raise DumpError("--format, --budget and --snippet are for a DUMP; --emulate names the formats of a SCRIPT")
    if args.steps < 1:
        raise DumpError(f"--steps must be at least 1, not {args.steps}")
    module = args.run[:1] == ["-m"]
    words = tuple(args.run[1:] if module else args.run)
    if not words:
        raise DumpError("give a SCRIPT, or -m MODULE, after the options of msprobe")
    script = Script(words, module)
    if script.launcher:
        raise DumpError("--emulate runs one process: give the script without torchrun")
    script.check()
    with tempfile.TemporaryDirectory(prefix="msprobe_emulate_") as directory:
        runs = emulate_script(script, forms, args.keep or (), args.steps, args.stochastic, Path(directory), announce)
    if args.json:
        records = [one.as_record(runs[0]) for one in runs]
        print_json("precision-emulate", {"script": str(script), "runs": records})
    else:
        show_emulation(str(script), runs, args.everything)
    return 0
