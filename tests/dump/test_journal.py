"""Everything written to a journal can be read again, also from an incomplete journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.dump import journal
from msprobe.dump.journal import Head

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=4)
STACKS = st.none() | st.integers(0, 9)
FATES = st.sampled_from(["end", "drop", "open", "record"])
CALLS = st.lists(st.tuples(NAMES, st.none() | NAMES, STACKS, BODIES, BODIES, FATES), max_size=12)
HEAD = Head("statistics", "mix", "pytorch")


def members(body: dict[str, Any]) -> str:
    return json.dumps(body)[1:-1]


def same(one: Any, other: Any) -> bool:
    """Equal as JSON text, where NaN is itself."""
    return json.dumps(one) == json.dumps(other)


def write(calls: list[Any]) -> tuple[bytes, dict[str, Any]]:
    """A journal of nested calls (all begin, then end in reverse) and the records it should give."""
    lines, closing, expected = [journal.head_line(HEAD)], [], []
    unfinished = []
    for number, (name, parent, stack, begin, end, fate) in enumerate(calls):
        if fate == "record":
            lines.append(journal.record_line(name, parent, stack, members(begin)))
            expected.append((name, begin))
            continue
        lines.append(journal.begin_line(number, name, parent, stack, members(begin)))
        if fate == "end":
            closing.append((journal.end_line(number, members(end)), (name, {**begin, **end})))
        elif fate == "drop":
            closing.append((journal.drop_line(number), None))
        else:
            unfinished.append((name, {**begin, "unfinished": True}))
    for line, record in reversed(closing):
        lines.append(line)
        expected += [record] if record else []
    wanted: dict[str, Any] = {}
    for name, record in expected + unfinished:
        wanted.pop(name, None)
        wanted[name] = record
    return "".join(lines).encode(), wanted


def read(found: journal.Scan) -> dict[str, Any]:
    return {json.loads(name): json.loads(found.body(entry)) for name, entry in found.records.items()}


@given(CALLS)
@settings(max_examples=300)
def test_records_come_back_in_the_order_in_which_they_were_completed(calls: list[Any]) -> None:
    data, wanted = write(calls)
    found = journal.scan(data, check=True)
    assert found.damaged == 0
    assert not found.torn
    assert same(read(found), wanted)
    assert list(read(found)) == list(wanted)


@given(CALLS, st.data())
@settings(max_examples=200)
def test_a_journal_cut_anywhere_gives_every_whole_line(calls: list[Any], data: st.DataObject) -> None:
    written, _ = write(calls)
    cut = written[: data.draw(st.integers(0, len(written)))]
    whole = cut[: cut.rfind(b"\n") + 1]
    found = journal.scan(cut, check=True)
    assert found.damaged == 0
    assert found.torn == (cut != whole)
    assert same(read(found), read(journal.scan(whole, check=True)))


@given(CALLS, st.binary(min_size=1, max_size=40).filter(lambda b: b"\n" not in b))
def test_a_damaged_line_is_counted_and_costs_nothing_else(calls: list[Any], garbage: bytes) -> None:
    written, wanted = write(calls)
    lines = written.splitlines(keepends=True)
    found = journal.scan(b"".join([lines[0], garbage + b"\n", *lines[1:]]), check=True)
    assert found.damaged == 1
    assert same(read(found), wanted)


def test_a_body_that_is_not_json_is_left_out_where_bodies_are_checked() -> None:
    data = (
        journal.head_line(HEAD).encode()
        + b'["record", "a", null, null, {"x": [1, }]\n["record", "b", null, null, {}]\n'
    )
    found = journal.scan(data, check=True)
    assert (list(read(found)), found.damaged) == (["b"], 1)


def test_the_last_of_two_records_with_one_name_is_kept_and_this_is_logged() -> None:
    data = "".join(journal.record_line("a", None, None, f'"n": {n}') for n in (1, 2)).encode()
    found = journal.scan(data)
    assert read(found) == {"a": {"n": 2}}
    assert "1 name was recorded more than once" in found.troubles()[0]


def test_bare_tokens_of_nan_and_infinity_are_copied_as_they_are() -> None:
    line = journal.record_line("a", None, None, '"Max": NaN, "Min": -Infinity')
    found = journal.scan(line.encode())
    assert found.body(found.records[b'"a"']) == b'{"Max": NaN, "Min": -Infinity}'


def test_stacks_may_come_before_or_after_their_use() -> None:
    lines = [
        journal.record_line("a", None, 7, ""),
        journal.stack_line(7, ["File x, line 1, in f, \n y"]),
        journal.debug_line("d", '"value, 1, {"'),
    ]
    found = journal.scan("".join(lines).encode(), check=True)
    assert json.loads(found.text(found.stacks[7])) == ["File x, line 1, in f, \n y"]
    assert json.loads(found.text(found.debugs[b'"d"'])) == "value, 1, {"
    assert found.damaged == 0


def test_a_place_is_a_parent_without_a_record() -> None:
    lines = [
        journal.place_line('a "b"', None),
        journal.place_line("c", 'a "b"'),
        journal.record_line("d", "c", None, ""),
    ]
    found = journal.scan("".join(lines).encode(), check=True)
    assert {json.loads(name): json.loads(parent) for name, parent in found.places.items()} == {
        'a "b"': None,
        "c": 'a "b"',
    }
    assert (found.damaged, len(found.records)) == (0, 1)
    assert journal.scan(b'["place", "a", nul]\n["place", "a"]\n').damaged == 2


def test_a_record_has_the_phase_in_which_it_began():
    lines = [
        journal.head_line(HEAD),
        journal.phase_line('"phase": "forward", "microbatch": 0'),
        journal.begin_line(0, "outer", None, None, ""),
        journal.begin_line(1, "inner", None, None, ""),
        journal.phase_line('"phase": "other", "microbatch": 0'),
        journal.end_line(1, ""),
        journal.begin_line(2, "late", None, None, ""),
        journal.phase_line('"phase": "forward", "microbatch": 1, "call": 2'),
        journal.end_line(2, ""),
        journal.end_line(0, ""),
        journal.record_line("gradient", None, None, ""),
        journal.begin_line(3, "open", None, None, ""),
    ]
    found = journal.scan("".join(lines).encode())
    phases = {name.decode(): entry.phase for name, entry in found.records.items()}
    assert phases == {
        '"inner"': ("forward", 0),
        '"late"': ("forward", 1),
        '"outer"': ("forward", 0),
        '"gradient"': ("forward", 1),
        '"open"': ("forward", 1),
    }
    assert not found.damaged


@pytest.mark.parametrize(
    "text",
    ['"phase": "forward"', '"phase": "lunch", "microbatch": 0', '"phase": "other", "microbatch": -1', '"phase": [', ""],
)
def test_a_damaged_phase_is_left_out(text):
    found = journal.scan((journal.head_line(HEAD) + journal.phase_line(text)).encode())
    assert found.damaged == 1
    assert found.phase is None
