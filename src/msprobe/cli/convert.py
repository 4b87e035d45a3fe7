"""`msprobe convert`: converts Ascend's asynchronous dump files to npy, bin or pt, without Ascend."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msprobe.graphdump.files.convert import Outcome

EPILOG = """example:
  msprobe convert -d dump/rank_0 -out ./output -f NCHW -t npy
  writes {file}.{input|output}.{i}.{AxBxC}.npy; output/convert_failed_file_list.txt lists files that failed
exit code: 0 all converted, 1 some failed, 2 none converted"""
FORMATS = ("NCHW", "NHWC", "HWCN", "NCDHW", "NDHWC", "DHWCN", "ND")


def _shape(text: str) -> tuple[int, ...]:
    numbers = text.strip("()[] ").replace("x", ",").split(",")
    try:
        shape = tuple(int(number) for number in numbers if number.strip())
    except ValueError:
        shape = ()
    if not shape or min(shape) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write 30,1024,17,17")
    return shape


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an index; write an integer from 0")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-d", "--dump-path", type=Path, required=True, metavar="FILE|DIR", help="the dump")
    parser.add_argument("-out", "--output-path", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "-f", "--format", choices=FORMATS, help="convert to this layout and remove the padding; default: as stored"
    )
    parser.add_argument("-t", "--type", choices=("npy", "bin", "pt"), default="npy", help="default: npy")
    parser.add_argument(
        "-s",
        "--shape",
        type=_shape,
        help="the original shape, if the file does not have it (with -i or -o): 30,1024,17,17",
    )
    parser.add_argument(
        "-i", "--input", type=_index, action="append", metavar="N", help="only this input; may be repeated"
    )
    parser.add_argument(
        "-o", "--output", type=_index, action="append", metavar="N", help="only this output; may be repeated"
    )
    parser.add_argument(
        "--layout",
        choices=("flat", "sync"),
        default="flat",
        help="sync: directories and names that `msprobe graph` reads (npy only); default: flat",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from msprobe.cli.outputs import check_outputs
    from msprobe.graphdump.files.convert import FAILED_LIST, Request, convert_all, plan
    from msprobe.report.progress import progress

    if args.layout == "sync" and args.type != "npy":
        return _refuse(f"--layout sync writes only npy files; leave -t {args.type} out")
    if not args.dump_path.exists():
        return _refuse(f"{args.dump_path} does not exist")
    check_outputs((), args.output_path)
    jobs, others = plan(args.dump_path, args.output_path, args.layout == "sync")
    if not jobs:
        return _refuse(f"{args.dump_path} has no asynchronous dump file (their names have no suffix)")
    request = Request(
        target=args.format,
        kind=args.type,
        shape=args.shape,
        inputs=frozenset(args.input) if args.input else None,
        outputs=frozenset(args.output) if args.output else None,
        sync_names=args.layout == "sync",
    )
    try:
        args.output_path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        return _refuse(f"cannot create {args.output_path}: {error.strerror}")
    outcomes = list(progress(convert_all(jobs, request), len(jobs), "converting"))
    failed = [outcome for outcome in outcomes if outcome.errors]
    _write_failed_list(args.output_path / FAILED_LIST, failed)
    if args.json:
        _print_json(outcomes)
    else:
        _print_text(outcomes, others, args.output_path / FAILED_LIST)
    if not failed:
        return 0
    return 1 if any(outcome.written for outcome in outcomes) else 2


def _refuse(message: str) -> int:
    print(f"msprobe convert: {message}", file=sys.stderr)
    return 2


def _write_failed_list(path: Path, failed: Sequence[Outcome]) -> None:
    """Writes one line per failed file: path, tab, reason. Deletes an older list if nothing failed."""
    if not failed:
        path.unlink(missing_ok=True)
        return
    lines = (f"{outcome.source}\t{'; '.join(outcome.errors)}\n" for outcome in failed)
    path.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
    path.chmod(0o640)


def _print_json(outcomes: Sequence[Outcome]) -> None:
    from msprobe.report.json_output import print_json

    rows = [
        {
            "file": str(outcome.source),
            "written": [str(path) for path in outcome.written],
            "errors": outcome.errors,
            "notes": outcome.notes,
        }
        for outcome in outcomes
    ]
    print_json("convert", {"files": rows}, indent=2)


def _print_text(outcomes: Sequence[Outcome], others: int, failed_list: Path) -> None:
    from msprobe.dump.plural import count
    from msprobe.report.terminal import print_lines

    written = sum(len(outcome.written) for outcome in outcomes)
    failed = sum(bool(outcome.errors) for outcome in outcomes)
    skipped = f", {count(others, 'other file')} skipped" if others else ""
    counts = f"{count(len(outcomes), 'file')}: {count(written, 'tensor')} written, {count(failed, 'file')} failed"
    print_lines([counts + skipped])
    lines = [f"  {one.source.name}: {text}" for one in outcomes for text in (*one.errors, *one.notes)]
    lines += [f"{failed_list} lists the failed {'file' if failed == 1 else 'files'}"] if failed else []
    print_lines(lines, bold=False, stream=sys.stderr)
