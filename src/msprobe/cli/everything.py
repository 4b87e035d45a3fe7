"""The option --all of the verbs that print tables."""

from __future__ import annotations

import argparse


def add_all(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--all", dest="everything", action="store_true", help="print every row whole, not one screen of them"
    )
