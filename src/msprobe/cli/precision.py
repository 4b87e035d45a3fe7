"""`msprobe precision`: what a low-precision format would do to the products of a recorded model."""

from __future__ import annotations

import argparse
from pathlib import Path

from msprobe.cli.everything import add_all

EPILOG = """examples:
  msprobe precision ./dump --format nvfp4
  msprobe precision ./dump --format mxfp8,fp8-e4m3 --budget 20dB
  msprobe precision ./dump --format mxfp8 --snippet torchao > keep.py
the dump: of PyTorch or MindSpore, with task tensor, or with task statistics and "precision": {"formats": [...]} in
config.json
exit code: 0 every product meets the budget, 1 some do not, 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("path", type=Path, metavar="DUMP", help="a dump, or a step or rank directory of one")
    parser.add_argument(
        "--format", dest="formats", required=True, metavar="NAMES", help="formats, such as nvfp4 or mxfp8,bf16"
    )
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


def run(args: argparse.Namespace) -> int:
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
