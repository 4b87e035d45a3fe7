"""The journal in C and in Python: the same bytes written, the same records read."""

from __future__ import annotations

import importlib.util
import random
import sys
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.dump import journal, json_files, native

in_c = pytest.importorskip(
    "msprobe.dump.native._journal", reason="the C part is not built: no compiler at installation"
)
if native.journal is None:
    pytest.skip("MSPROBE_PURE_PYTHON=1 selects Python: nothing to compare with", allow_module_level=True)

_TEXT = st.text(max_size=12) | st.sampled_from(["Tensor.add.0.forward", 'a"b', "a\\b", "line\nfeed", "\ud800", "层.0"])
_NUMBER = st.none() | st.integers(-3, 10**19)


def _python_journal() -> ModuleType:
    """A second copy of journal.py, which has no C."""
    spec = importlib.util.spec_from_file_location("journal_in_python", journal.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept, native.journal = native.journal, None
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        native.journal = kept
        del sys.modules[spec.name]
    return module


_python = _python_journal()


def _scan_in_python(data: bytes) -> journal.Scan:
    kept, native.journal = native.journal, None
    try:
        return journal.scan(data)
    finally:
        native.journal = kept


def _members_in_python(found: journal.Scan) -> list[bytes]:
    kept, native.journal = native.journal, None
    try:
        return list(json_files._records(found))
    finally:
        native.journal = kept


def test_the_writer_uses_c() -> None:
    assert journal.begin_line is in_c.begin_line
    assert _python.begin_line is not in_c.begin_line


@given(call=st.integers(0, 10**19), name=_TEXT, parent=st.none() | _TEXT, stack=_NUMBER, text=_TEXT)
def test_lines_have_the_same_text(call, name, parent, stack, text):
    assert in_c.begin_line(call, name, parent, stack, text) == _python.begin_line(call, name, parent, stack, text)
    assert in_c.record_line(name, parent, stack, text) == _python.record_line(name, parent, stack, text)
    assert in_c.end_line(call, text) == _python.end_line(call, text)


def _line(draw: random.Random) -> str:
    """A line that a writer, an older version or an accident may have made."""
    names = ["A.0.forward", "B.0.forward", "M.parameters_grad", 'q"\\x', "层"]
    name, parent = draw.choice(names), draw.choice([None, *names])
    body = draw.choice(["", '"input_args": [], "output": {}', " ", '"x": "}]"'])
    stack = draw.choice([None, 0, 3, -1])
    number = draw.randrange(4)
    line = draw.choice(
        [
            _python.begin_line(number, name, parent, stack, body),
            _python.end_line(number, body),
            _python.record_line(name, parent, stack, body),
            _python.drop_line(number),
            _python.stack_line(number, ["File x"]),
            _python.phase_line('"phase": "forward", "microbatch": 0'),
            _python.place_line(name, parent),
        ]
    )
    if draw.random() < 0.2:  # other spacing: a journal that went through a JSON program
        line = line.replace(", ", ",")
    if draw.random() < 0.15:
        at = draw.randrange(len(line))
        line = line[:at] + draw.choice(["", '"', "\\", "{", "0" * 20, "null", "\n"]) + line[at + 1 :]
    return line


@settings(max_examples=400)
@given(seed=st.integers(0, 2**32), cut=st.booleans())
def test_both_read_the_same_from_any_journal(seed, cut):
    draw = random.Random(seed)
    data = "".join(_line(draw) for _ in range(draw.randrange(25))).encode("utf-8", "backslashreplace")
    data = data[: draw.randrange(len(data) + 1)] if cut else data
    found, wanted = journal.scan(data), _scan_in_python(data)
    assert vars(found) == vars(wanted)
    assert list(found.records) == list(wanted.records)  # the order of the file
    assert all(type(entry) is journal.Entry for entry in found.records.values())
    assert list(json_files._records(found)) == _members_in_python(wanted)


def test_wrong_arguments_raise_an_error():
    with pytest.raises(TypeError):
        in_c.begin_line()
    with pytest.raises(TypeError):
        in_c.begin_line(1, 2, None, None, "")
    with pytest.raises(TypeError):
        in_c.end_line(1, b"")
    with pytest.raises(TypeError):
        in_c.scan(b"", 0, 10, {}, {}, None, int)
    with pytest.raises(ValueError):
        in_c.member(b"{}", b'"a"', ((0, 9),), False)
    assert in_c.scan(b"", 0, 10, {}, {}, None, journal.Entry) == 0
    assert in_c.scan(b"{}\n", -5, 10, {}, {}, None, journal.Entry) == -5


def test_no_object_stays_behind():
    """Reading the same journal again and again holds no further references."""
    name = "Tensor.add.0.forward"
    data = (
        _python.begin_line(0, name, None, 1, '"a": 1')
        + _python.end_line(0, '"b": 2')
        + _python.record_line(name, name, None, "")
    ).encode()
    phase = ("forward", 0)

    def read() -> None:
        position, records = 0, {}
        while position < len(data):
            before = position
            position = in_c.scan(data, position, 1 << 20, records, {}, phase, journal.Entry)
            if position == before:
                break
        for key, entry in records.items():
            in_c.member(data, key, entry.bodies, entry.unfinished)
        in_c.begin_line(10**6, 'quoted"name', name, 10**6, "text")

    read()
    before = sys.getrefcount(phase), sys.getrefcount(data), sys.getrefcount(name), sys.getrefcount(journal.Entry)
    for _ in range(2000):
        read()
    assert (
        sys.getrefcount(phase),
        sys.getrefcount(data),
        sys.getrefcount(name),
        sys.getrefcount(journal.Entry),
    ) == before
