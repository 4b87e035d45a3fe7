"""The bad configurations of the PyTorch side, given to MindSpore: the same messages, and nothing is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe.config import ConfigError
from msprobe.mindspore import PrecisionDebugger

BAD = json.loads((Path(__file__).parents[1] / "config" / "data" / "bad.json").read_text(encoding="utf-8"))
# Those whose message names a framework or a mode, and those about PyTorch's own keys at L2, are rules of that one.
COMMON = [
    case
    for case in BAD
    if not case["graph_mode"]
    and not any(" on " in text for text in case["problems"])
    and not (case["framework"] == "pytorch" and '"level": "L2"' in json.dumps(case["config"]))
]


def test_most_are_common():
    assert len(COMMON) > 50


@pytest.mark.parametrize("case", COMMON, ids=[json.dumps(case["config"])[:60] for case in COMMON])
def test_a_bad_configuration_gives_the_exact_message(tmp_path, case):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case["config"]), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        PrecisionDebugger(str(path))
    assert [str(problem) for problem in caught.value.problems] == case["problems"]
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]
    assert PrecisionDebugger._current is None
