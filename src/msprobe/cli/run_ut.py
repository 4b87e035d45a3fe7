"""`msprobe run_ut`: runs each API of a dump again and compares it with a golden in higher precision."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from msprobe.cli.everything import add_all

EPILOG = """examples:
  msprobe run_ut -api_info ./dump_path -o ./out
  msprobe run_ut -api_info ./dump_path/step0/rank0/dump.json --jobs 4 -save_error_data
  msprobe run_ut -api_info ./dump_path -csv_path ./out/accuracy_checking_result_20250101120000.csv
exit code: 0 all checked APIs pass, 1 errors or warnings, 2 failed or nothing checked"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "-api_info", "--api_info_file", dest="api_info", type=Path, metavar="DUMP", help="a dump.json or a directory"
    )
    parser.add_argument("-o", "--out_path", dest="output", type=Path, default=Path(), metavar="DIR", help="default: .")
    parser.add_argument("-d", "--device", default="cpu", help="the device under test (default: cpu)")
    parser.add_argument("-config", "--config_path", dest="config", type=Path, metavar="FILE", help="config.json")
    parser.add_argument(
        "-csv_path",
        "--result_csv_path",
        dest="resumed",
        type=Path,
        metavar="FILE",
        help="continue this results file of a run that was stopped",
    )
    parser.add_argument(
        "-save_error_data", action="store_true", help="save inputs and outputs of failed calls (error_data_path)"
    )
    parser.add_argument(
        "-f",
        "--filter_api",
        dest="once",
        action="store_true",
        help="run only the first of the calls that differ only in values",
    )
    cores = min(8, os.cpu_count() or 1)
    parser.add_argument(
        "--jobs", "-n", type=_positive, default=cores, metavar="N", help=f"processes (default: {cores})"
    )
    parser.add_argument("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds per call (default: 120)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the results as a web page")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_all(parser)
    parser.add_argument("--online", action="store_true", help="check a training run while it runs (is_online)")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import MODULE first, to register custom operators",
    )


def run(args: argparse.Namespace) -> int:
    from msprobe.check.core.framework import FRAMEWORKS
    from msprobe.check.core.pool import WorkerSettings
    from msprobe.check.core.precheck import Request, check
    from msprobe.cli.framework import check_framework
    from msprobe.cli.outputs import check_outputs
    from msprobe.dump.errors import DumpError
    from msprobe.dump.nearby import open_or_explain
    from msprobe.report.progress import progress

    settings = _settings(args)
    check_outputs([args.html], args.output)
    if args.save_error_data:
        check_outputs((), settings.error_data_path)
    if args.online or settings.is_online:
        return _online(args, settings)
    if args.api_info is None:
        raise DumpError("Give a dump: msprobe run_ut -api_info DUMP.")
    dump = open_or_explain(args.api_info)
    for rank in dump.ranks:
        check_framework(args.framework, rank)
        if rank.head.get("framework") not in FRAMEWORKS:
            known = " and ".join(FRAMEWORKS)
            raise DumpError(f"{rank.path} is a {rank.head.get('framework')} dump; run_ut checks {known} dumps.")
    kept = None
    if args.save_error_data:
        kept = (settings.error_data_path / f"ut_error_data{time.strftime('%Y%m%d%H%M%S')}").absolute()
    request = Request(
        dump,
        args.output,
        settings.white_list,
        settings.black_list,
        args.once,
        args.resumed,
        args.jobs,
        args.timeout,
        WorkerSettings(args.device, kept, tuple(args.imports), str(dump.ranks[0].head.get("framework"))),
    )
    try:
        report = check(request, progress)
    except KeyboardInterrupt:
        where = args.resumed or args.output / "accuracy_checking_result_….csv"
        print(f"msprobe run_ut: interrupted. Continue with -csv_path {where}.", file=sys.stderr)
        raise
    if kept is not None and kept.exists():
        report.files.append(kept)
    return _report(args, report)


def _online(args: argparse.Namespace, settings: Any) -> int:
    from msprobe.check.core.pool import WorkerSettings
    from msprobe.check.online.checker import Checker
    from msprobe.dump.errors import DumpError
    from msprobe.report.terminal import printable

    if not settings.is_online:
        raise DumpError('--online needs "is_online": true and an address in section run_ut of -config.')

    def log(sentence: str) -> None:
        print(printable(sentence), flush=True, file=sys.stderr if args.json else sys.stdout)

    kept = (settings.error_data_path / "ut_error_data_online").absolute() if args.save_error_data else None
    workers = WorkerSettings(args.device, kept, tuple(args.imports), args.framework)
    report = Checker(settings, args.output, log).run(args.jobs, args.timeout, workers)
    return _report(args, report)


def _report(args: argparse.Namespace, report: Any) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.report.check_page import write_page
    from msprobe.report.check_terminal import as_json, print_report
    from msprobe.report.json_output import print_json

    if not args.json:
        print_report(report, args.everything, reserved=len(report.files) + (args.html is not None))
    if args.html is not None:
        try:
            write_page(report, args.html)
        except OSError as error:
            raise DumpError(f"Cannot write the page: {error}.") from None
        report.files.append(args.html)
    if args.json:
        print_json("run_ut", as_json(report))
        return int(report.exit_code)
    for path in report.files:
        print(f"Wrote {path}")
    return int(report.exit_code)


def _settings(args: argparse.Namespace) -> Any:
    """The run_ut section of the configuration, or its defaults."""
    from msprobe.config import load

    settings = load("pytorch", args.config, task="run_ut")
    for warning in settings.warnings if args.config is not None else ():
        print(f"{args.config}: {warning}", file=sys.stderr if args.json else sys.stdout)
    return settings.section


def _positive(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to 256")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 86400")
    return value
