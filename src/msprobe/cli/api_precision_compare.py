"""`msprobe api_precision_compare`: the second stage of the accuracy check."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from msprobe.cli.everything import add_all

EPILOG = """example:
  msprobe api_precision_compare -npu npu/accuracy_checking_details_1.csv -gpu gpu/accuracy_checking_details_1.csv -o out
exit code: 0 all checked outputs pass, 1 errors or warnings, 2 failed or nothing checked"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    for name, device in (("npu", "the device under test"), ("gpu", "the reference device")):
        flags = (f"-{name}", f"--{name}_csv_path")
        text = f"details file of {device}"
        parser.add_argument(*flags, dest=name, type=Path, required=True, metavar="CSV", help=text)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_all(parser)
    parser.add_argument("-o", "--out_path", dest="output", type=Path, default=Path(), metavar="DIR", help="default: .")


def run(args: argparse.Namespace) -> int:
    from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING
    from msprobe.check.core.results import write_table
    from msprobe.check.core.second_stage import COLUMNS, RESULT_COLUMNS, compare, read_details, summarise
    from msprobe.cli.outputs import check_outputs
    from msprobe.dump.errors import DumpError
    from msprobe.dump.layout import make_directory
    from msprobe.dump.plural import count
    from msprobe.messages import beside
    from msprobe.report.json_output import print_json
    from msprobe.report.screen import MARK, NAME, TEXT, Column, Screen

    check_outputs((), args.output)
    judged = compare(read_details(args.npu), read_details(args.gpu))
    calls = summarise(judged)
    stamp = time.strftime("%Y%m%d%H%M%S")
    details = args.output / f"api_precision_compare_details_{stamp}.csv"
    result = args.output / f"api_precision_compare_result_{stamp}.csv"
    try:
        make_directory(args.output)
        write_table(details, [COLUMNS, *(one.cells for one in judged)])
        write_table(result, [RESULT_COLUMNS, *((call, *row) for call, row in calls.items())])
    except OSError as error:
        raise DumpError(f"Cannot write the results: {error}.") from None
    statuses = [one.verdict.status for one in judged]
    bad = [one for status in (ERROR, WARNING) for one in judged if one.verdict.status == status]
    code = 1 if bad else 0 if PASS in statuses else 2
    words = {"pass": PASS, "warning": WARNING, "error": ERROR, "not judged": SKIP}
    counts = {word: statuses.count(status) for word, status in words.items()}
    if args.json:
        found = [
            {"output": one.name, "status": one.verdict.status, "reason": one.verdict.reason,
             **beside({"reason": one.verdict.reason}, "reason")}
            for one in bad
        ]  # fmt: skip
        totals = {"outputs": len(judged), **{word.replace(" ", "_"): number for word, number in counts.items()}}
        content = {**totals, "findings": found, "files": [str(result), str(details)]}
        print_json("api_precision_compare", content)
        return code
    screen = Screen(args.everything)
    screen.say([f"{count(len(judged), 'output')}: {', '.join(f'{n} {word}' for word, n in counts.items())}"])
    if bad:
        columns = [Column("output", NAME), Column("status", MARK), Column("standard", drop=1), Column("reason", TEXT)]
        rows = [(one.name, one.verdict.status, one.standard, one.verdict.reason) for one in bad]
        screen.table(columns, rows, "The worst first")
    screen.say([f"Wrote {result}", f"Wrote {details}"])
    screen.show()
    return code
