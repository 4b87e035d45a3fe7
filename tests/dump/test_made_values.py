"""The member `made` of flow.json: where values come from that no recorded call produced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msprobe.dump import layout
from msprobe.dump.made_values import Source, read_made_values
from msprobe.dump.reader import open_dump

LINK = {
    "link": 0,
    "api": "Tensor.view",
    "args": "2, 3",
    "file": "a.py",
    "line": 7,
    "function": "f",
    "text": "x.view(2, 3)",
}
VALUE = {"value": 0, "link": 0, "shape": [2, 3], "of": [{"id": 4, "memory": 1}, None]}


def test_a_value_has_its_call_its_shape_and_what_it_was_made_of() -> None:
    held = {"memory": 1, "name": "rope.cos", "kind": "buffer"}
    found = read_made_values([LINK, VALUE, {"slot": "a.input.0", "value": 0, "part": 1}, held], layout.FLOW)
    assert found.complete
    assert found.slots == {"a.input.0": Source(value=0, part=1)}
    one = found.values[0]
    assert (one.link.api, one.link.args, one.link.frame.line, one.shape) == ("Tensor.view", "2, 3", 7, (2, 3))
    assert one.sources == (Source(id=4, memory=1), None)
    assert found.held[1].name == "rope.cos"
    assert not read_made_values([{"cut": True}], layout.FLOW).complete


@pytest.mark.parametrize(
    ("made", "trouble"),
    [
        ({}, "should be a list"),
        ([1], "not a JSON object"),
        ([{}], "of no known kind"),
        ([VALUE], "a call that is not there"),
        ([{**LINK, "line": -1}], "a line in flow.json"),
        ([{**LINK, "args": 5}], "should be text"),
        ([LINK, {**VALUE, "of": [{"value": 0}]}], "names the value 0, which is not there"),
        ([LINK, {**VALUE, "shape": ["a"]}], "a number in flow.json"),
        ([LINK, {**VALUE, "of": 3}], "should be a list"),
        ([{"slot": "a.input.0", "value": 1 << 70}], "a number in flow.json"),
        ([{"slot": ["a"]}], "should be text"),
        ([{"memory": 0, "name": None, "kind": "buffer"}], "should be text"),
    ],
)
def test_a_damaged_list_is_one_sentence(tmp_path: Path, made: Any, trouble: str) -> None:
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (tmp_path / layout.DUMP).write_text(json.dumps({**head, "data": {"a": {}}}))
    assert open_dump(tmp_path).ranks[0].made_values is None
    (tmp_path / layout.FLOW).write_text(json.dumps({"made": made}))
    (rank,) = open_dump(tmp_path).ranks
    assert rank.made_values is None
    (said,) = rank.troubles
    assert trouble in said
