"""`msprobe schema`: the JSON Schema of what a verb prints with --json, and the sentences in it."""

from __future__ import annotations

import argparse
import json

EPILOG = """examples:
  msprobe schema                 all names
  msprobe schema compare         a JSON Schema (2020-12)
  msprobe schema messages        the id of every sentence, with its English and Chinese text
exit code: 0 printed, 2 there is no such schema"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a verb, one of the names that are listed without it, or messages"
    )


def run(args: argparse.Namespace) -> int:
    from msprobe.dump.errors import DumpError
    from msprobe.messages import sentences
    from msprobe.schemas import schema, schema_names

    if args.name is None:
        print("\n".join(schema_names()))
        return 0
    if args.name == "messages":
        print(json.dumps(sentences(), indent=1, ensure_ascii=False))
        return 0
    try:
        print(json.dumps(schema(args.name), indent=1))
    except KeyError:
        raise DumpError(f"There is no schema {args.name!r}; choose from {', '.join(schema_names())}.") from None
    return 0
