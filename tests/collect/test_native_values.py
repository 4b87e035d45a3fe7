"""Arguments and results rendered in C and in Python: the same text."""

from __future__ import annotations

import collections
import enum
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.collect.records import values as module
from msprobe.collect.records.values import MarkedValue, PythonValues, Values

pytest.importorskip("msprobe.collect.records._values", reason="the C part is not built: no compiler at installation")
if module._values_in_c is None:
    pytest.skip("MSPROBE_PURE_PYTHON=1 selects Python: nothing to compare with", allow_module_level=True)


class Tensor:
    def __init__(self, quick: bool) -> None:
        self.quick = quick


class Kind(int, enum.Enum):
    ONE = 1


Point = collections.namedtuple("Point", "x y")


class Adapter:
    """Renders a tensor with its path; some only in full."""

    tensor_types = frozenset({Tensor})

    def quick_text(self, tensor):
        return '{"tensor": "quick"}' if tensor.quick else None

    def tensor_text(self, tensor, path):
        if tensor.quick and not path:
            return '{"tensor": "quick"}'
        return f'{{"tensor": "名 {path}"}}'

    def other_text(self, value, path):
        return f'{{"array": "{path}"}}' if isinstance(value, np.ndarray) else None


class FullAdapter(Adapter):
    quick_text = None


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["x" * 1000, "x" * 1001, 'q"', "\\", "\x7f", "\n", "层", "\ud800", Kind.ONE, 10**30, -(2**63)])
    | st.sampled_from([Tensor(True), Tensor(False), np.ones(2), np.float32(2), slice(1, None), ..., b"ab", 1j, int])
    | st.builds(MarkedValue, st.just(Tensor(True)), st.just('"written": true'))
)
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)
paths = st.sampled_from(["", "Tensor.add.0.forward.input", "层"])


@pytest.mark.parametrize("adapter", [Adapter(), FullAdapter()])
@given(
    args=st.lists(nested), value=nested, path=paths, names=st.dictionaries(st.text() | st.just(1), nested, max_size=3)
)
def test_c_and_python_render_the_same(adapter, args, value, path, names):
    in_c, python = Values(adapter), PythonValues(adapter)
    assert in_c.sequence(args, path) == python.sequence(args, path)
    assert in_c.sequence(tuple(args), path) == python.sequence(tuple(args), path)
    assert in_c.mapping(names, path) == python.mapping(names, path)
    assert in_c.result(value, path) == python.result(value, path)
    assert in_c.value(value, path) == python.value(value, path)


def test_an_error_of_the_adapter_reaches_the_caller_and_leaves_nothing_behind():
    class Broken(Adapter):
        def quick_text(self, tensor):
            raise RuntimeError("no memory")

    tensor = Tensor(True)
    values = Values(Broken())
    before = sys.getrefcount(tensor)
    for _ in range(100):
        with pytest.raises(RuntimeError, match="no memory"):
            values.sequence((1, [tensor, "x"]), "")
    assert sys.getrefcount(tensor) == before


def test_a_long_text_is_complete():
    text = Values(Adapter()).sequence([Tensor(True), 0.5] * 4000, "")
    assert text == PythonValues(Adapter()).sequence([Tensor(True), 0.5] * 4000, "")


def test_no_object_stays_behind():
    tensor, path, names = Tensor(True), "a.path", {"alpha": 1.5, "other": None}
    watched = (tensor, path, names, Tensor, *names)
    values = Values(Adapter())

    def render() -> None:
        values.sequence((tensor, 1, 2.5, "text", (tensor, 3), [tensor]), "")
        values.sequence((tensor, 1, "层"), path)
        values.mapping(names, path)
        values.result((tensor, tensor), "")
        values.result(tensor, path)

    render()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(3000):
        render()
    assert [sys.getrefcount(one) for one in watched] == before
