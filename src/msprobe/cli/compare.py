"""`msprobe compare`: the difference between two dumps, and where it started."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from msprobe.cli.everything import add_all

EPILOG = """examples:
  msprobe compare ./target_dump ./golden_dump
  msprobe compare ./target_dump ./golden_dump --html report.html --csv rows.csv
  msprobe compare ./target_dump/step0/rank1 ./golden_dump/step0/rank1 --json rows.jsonl
  msprobe compare -i compare.json -o ./out
exit code: 0 same, 1 differs, 2 failed, or some rows could not be compared"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("target", nargs="?", type=Path, metavar="TARGET", help="the dump to check")
    parser.add_argument("golden", nargs="?", type=Path, metavar="GOLDEN", help="the dump that is known to be good")
    parser.add_argument("-tp", "--target-path", type=Path, metavar="DUMP", help="same as TARGET")
    parser.add_argument("-gp", "--golden-path", type=Path, metavar="DUMP", help="same as GOLDEN")
    parser.add_argument(
        "-i", "--input_path", dest="input", type=Path, metavar="FILE", help="compare.json with npu_path and bench_path"
    )
    parser.add_argument(
        "-o", "--output_path", dest="output", type=Path, metavar="DIR", help="write an xlsx and an html report there"
    )
    matching = parser.add_argument_group("matching")
    matching.add_argument("--match", choices=("auto", "exact", "fuzzy"), default="auto", help="default: auto")
    matching.add_argument(
        "-f", "--fuzzy", "--fuzzy_match", action="store_true", help="same as --match fuzzy: names without call numbers"
    )
    for kind, text in (("api", "API names"), ("cell", "Cell or module names"), ("layer", "renamed layers")):
        matching.add_argument(
            f"-{kind[0]}m",
            f"--{kind}-mapping",
            f"--{kind}_mapping",
            nargs="?",
            const="",
            metavar="YAML",
            help=f"{text}; without a file, the built-in table",
        )
    matching.add_argument(
        "-dm", "--data-mapping", "--data_mapping", type=Path, metavar="YAML", help="full names, target to golden"
    )
    matching.add_argument("--layout", type=Path, metavar="YAML", help="how the ranks and shards belong together")
    matching.add_argument("--step", type=_numbers, metavar="N,N-M", help="only these steps")
    matching.add_argument("--rank", type=_numbers, metavar="N,N-M", help="only these ranks")
    judging = parser.add_argument_group("judging")
    judging.add_argument(
        "--tolerance", choices=("auto", "8.3", "26"), default="auto", help="auto: by dtype and noise; or a preset"
    )
    judging.add_argument("--noise", type=Path, metavar="DUMP", help="a second golden run: its differences are noise")
    judging.add_argument(
        "--older",
        type=Path,
        metavar="CHECKPOINT",
        help="rollout against trainer: earlier weights, to recognise stale ones",
    )
    judging.add_argument(
        "--shares",
        action="store_true",
        help="rollout against trainer: the share of each layer in the difference",
    )
    reports = parser.add_argument_group("reports")
    add_all(reports)
    for kind, text in (("csv", "csv"), ("xlsx", "xlsx"), ("html", "html")):
        reports.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write the rows as {text}")
    reports.add_argument(
        "--json",
        nargs="?",
        const="",
        metavar="FILE",
        help="print the summary as JSON; FILE: write it and the rows",
    )
    for old in (("-hl", "--highlight"), ("-s", "--stack_mode"), ("-c", "--compare_only")):
        reports.add_argument(*old, action="store_true", help="ignored; always on")
    reports.add_argument(
        "--next-config", type=Path, metavar="FILE", help="write a config.json that dumps tensors of the suspects only"
    )
    scale = parser.add_argument_group("scale")
    scale.add_argument("--jobs", type=int, default=1, metavar="N", help="processes on this machine (default: 1)")
    scale.add_argument("--engine", choices=("local", "ray"), default="local", help="ray: over a cluster")


def split_words(words: Sequence[str]) -> Sequence[str]:
    """`--json` before a dump or at the end has no FILE: argparse would take the dump as its FILE."""
    return [
        "--json=" if word == "--json" and _is_no_file(words[place + 1 : place + 2]) else word
        for place, word in enumerate(words)
    ]


def _is_no_file(following: Sequence[str]) -> bool:
    return not following or following[0].startswith("-") or Path(following[0]).is_dir()


def run(args: argparse.Namespace) -> int:
    from msprobe.system.collector import at_rest

    with at_rest():  # all data stays in memory until the report
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from msprobe.cli.compare_tokens import compare_tokens, find_sides
    from msprobe.cli.framework import check_framework
    from msprobe.cli.outputs import check_outputs
    from msprobe.compare import compare
    from msprobe.compare.align.mapping import load_mappings
    from msprobe.compare.inputs import open_sources
    from msprobe.dump.errors import DumpError
    from msprobe.dump.reader import open_dump
    from msprobe.report.comparison_terminal import print_comparison
    from msprobe.report.json_output import print_json
    from msprobe.report.progress import progress

    target, golden = _paths(args)
    sides = find_sides(target, golden)
    if sides is not None:
        return compare_tokens(args, sides)
    if args.older is not None or args.shares:
        raise DumpError("--older and --shares are for a rollout and a trainer; these dumps are not one of each.")
    rows = Path(args.json) if args.json else None
    files = (args.csv, rows, args.html, args.xlsx, args.next_config, args.output, args.output)
    check_outputs(files[:5], args.output)
    if args.framework is not None:
        check_framework(args.framework, open_dump(target).ranks[0])
    if target.exists() and golden.exists() and target.samefile(golden):
        open_sources(target, [])  # raises if it is no dump at all
        raise DumpError(f"Both paths are one directory, {target}: give two dumps.")
    comparison = compare(
        target,
        golden,
        match="fuzzy" if args.fuzzy else args.match,
        mapping=load_mappings(args.data_mapping, args.cell_mapping, args.api_mapping, args.layer_mapping),
        steps=args.step,
        ranks=args.rank,
        progress=progress,
        tolerance=args.tolerance,
        noise=args.noise,
        layout=args.layout,
        jobs=args.jobs,
        engine=args.engine,
    )
    if args.json == "":
        print_json("compare", comparison.summary())
    else:
        print_comparison(comparison, args.everything, reserved=len([path for path in files if path]))
    _write(args, comparison)
    return comparison.exit_code


def _write(args: argparse.Namespace, comparison: Any) -> None:
    from msprobe.dump.errors import DumpError

    xlsx, html = args.xlsx, args.html
    if args.output is not None:
        from msprobe.dump.layout import make_directory

        make_directory(args.output)
        stem = f"compare_result_{time.strftime('%Y%m%d%H%M%S')}"
        xlsx = xlsx or args.output / f"{stem}.xlsx"
        html = html or args.output / f"{stem}.html"
    try:
        if args.csv:
            from msprobe.report.csv import write_csv

            write_csv(comparison, args.csv)
        if args.json:
            from msprobe.report.jsonl import write_jsonl

            write_jsonl(comparison, Path(args.json))
        if html:
            from msprobe.view.export import export_comparison

            export_comparison(comparison, html)
        if xlsx:
            from msprobe.report.xlsx import write_xlsx

            write_xlsx(comparison, xlsx)
        if args.next_config:
            from msprobe.compare.next_config import write_next_config

            write_next_config(comparison, args.next_config)
    except OSError as error:
        raise DumpError(f"A report cannot be written: {error}.") from None
    for path in (args.csv, args.json, html, xlsx, args.next_config):
        if path and args.json != "":
            print(f"Wrote {path}")


def _paths(args: argparse.Namespace) -> tuple[Path, Path]:
    from msprobe.dump.errors import DumpError

    target, golden = args.target_path or args.target, args.golden_path or args.golden
    if args.input is not None:
        given = _read_input(args.input)
        target = target or given.get("npu_path") or given.get("target_path")
        golden = golden or given.get("bench_path") or given.get("golden_path")
        args.rank = args.rank or _listed(given, "rank_id", args.input)
        args.step = args.step or _listed(given, "step_id", args.input)
    if not target or not golden:
        raise DumpError("Two dumps are needed: msprobe compare TARGET GOLDEN, or -i compare.json with both paths.")
    return Path(target), Path(golden)


def _read_input(path: Path) -> dict[str, Any]:
    from msprobe.dump.errors import DumpError
    from msprobe.dump.untrusted.json_files import read_json

    try:
        given = read_json(path)
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise DumpError(f"{path} is not JSON: {error}.") from None
    if not isinstance(given, dict):
        raise DumpError(f'{path} must contain an object like {{"npu_path": "…", "bench_path": "…"}}.')
    return given


def _listed(given: dict[str, Any], key: str, path: Path) -> list[int]:
    from msprobe.dump.errors import DumpError

    value = given.get(key) or []
    if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
        raise DumpError(f"{path}: {key} must be a list of numbers, not {value!r}.")
    return value


def _numbers(text: str) -> Optional[list[int]]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is neither a number nor a range like 0-3") from None
        if len(numbers) > 1_000_000:
            raise argparse.ArgumentTypeError(f"the range {part!r} is too long")
        found += numbers
    return found
