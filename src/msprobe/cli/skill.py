"""`msprobe skill`: one page that teaches a coding agent the method."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  msprobe skill > SKILL.md\nexit code: 0 printed"


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from msprobe import mcp

    print(Path(mcp.__file__).with_name("skill.md").read_text(encoding="utf-8"), end="")
    return 0
