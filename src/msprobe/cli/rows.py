"""`msprobe rows`: the rows of a comparison by filter, in pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from msprobe.cli.everything import add_all

EPILOG = """examples:
  msprobe rows ./target ./golden --where module=blocks.1 --verdict error --limit 50
  msprobe compare ./target ./golden --json rows.jsonl; msprobe rows rows.jsonl --where role=introduced --json
  fields of --where: id, module, call, target, golden, step, rank, verdict, role, reason, dtype
  a name matches if it has these dotted parts (blocks.1 is not blocks.10), or with * and ? as a pattern
exit code: 0 shown, also if no row matches; 2 failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "msprobe rows TARGET GOLDEN [options]\n       msprobe rows ROWS.jsonl [options]"
    parser.epilog = EPILOG
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="two dumps, or a file of compare --json")
    parser.add_argument("--where", action="append", default=[], metavar="FIELD=VALUE", help="may be repeated")
    parser.add_argument(
        "--verdict",
        action="append",
        default=[],
        choices=("pass", "warning", "error", "not_compared"),
        help="may be repeated",
    )
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="rows of a page (default: 50)")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="skip N matching rows")
    parser.add_argument("--json", action="store_true", help="print the page as JSON")
    add_all(parser)


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from msprobe.compare import compare
    from msprobe.compare.row_query import parse_where, records_in, records_of, select
    from msprobe.dump.errors import DumpError
    from msprobe.report.json_output import print_json
    from msprobe.report.screen import MARK, NAME, TEXT, Column, Screen

    if len(args.paths) > 2 or (len(args.paths) == 1 and not args.paths[0].is_file()):
        raise DumpError("give two dumps, or one file that `msprobe compare --json FILE` wrote")
    if args.limit < 1 or args.offset < 0:
        raise DumpError("--limit must be at least 1, and --offset at least 0")
    where = parse_where(args.where)
    rows = records_of(compare(*args.paths)) if len(args.paths) == 2 else records_in(args.paths[0])
    page = select(rows, where, args.verdict, args.limit, args.offset)
    if args.json:
        print_json("rows", asdict(page))
        return 0
    columns = [
        Column("step/rank"), Column("verdict", MARK), Column("role", drop=2), Column("name", NAME),
        Column("difference", drop=3), Column("why", TEXT, drop=1),
    ]  # fmt: skip
    shown = []
    for one in page.rows:
        name = str(one["target"] or one["golden"])
        unit, _, mark = str(one["id"]).rpartition(f"/{name}")
        shown.append([unit, one["verdict"], one["role"], name + mark, one["distance"], one["reason"]])
    more = "" if page.next is None else f"; the next page: --offset {page.next}"
    screen = Screen(args.everything, listing=True)
    screen.say([f"{len(shown)} of {page.total} rows{more}"])
    screen.table(columns, shown)
    screen.show()
    return 0
