"""The page for agents: every command in it exists, with these options."""

from __future__ import annotations

import argparse
import importlib
import re

import pytest

from msprobe import cli
from msprobe.cli import main


def test_every_command_of_the_skill_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("---\nname: ")
    assert len(text) < 6000
    used = re.findall(r"msprobe (\w+)([^`\n#]*)", text)
    verbs = dict(cli.VERBS)
    commands = [(verb, words) for verb, words in used if verb in verbs]
    assert len({verb for verb, _ in commands}) >= 10
    for verb, words in commands:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"msprobe.cli.{verb}").add_arguments(parser)
        known = parser.format_help()
        for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", words.partition(" -- ")[0]):
            assert option in known, (verb, option)
