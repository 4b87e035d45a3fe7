"""File names of every generation, taken apart and put together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.dump.errors import DumpError
from msprobe.graphdump import GraphDump
from msprobe.graphdump.dumping.saving import Saver
from msprobe.graphdump.files import names
from msprobe.graphdump.files.names import OperatorName, parse_async, parse_tensor, raw_name

CONV = OperatorName("Conv2D", "Conv2D-op12", 0, 0, 1623124369613540)


@pytest.mark.parametrize(
    ("name", "form", "dtype"),
    [
        ("Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.npy", "DefaultFormat", ""),
        ("Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.float16.npy", "DefaultFormat", "float16"),
        ("Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.NCHW.Float32.npy", "NCHW", "Float32"),
        ("Conv2D.Conv2D-op12.0.1623124369613540.output.0.30x1024x17x17.npy", "", ""),
        ("Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.scalar.npy", "", ""),
    ],
)
def test_npy_names_of_all_generations(name, form, dtype):
    parsed = parse_tensor(name)
    assert parsed is not None
    assert (parsed.operator, parsed.io, parsed.slot) == (CONV, "output", 0)
    assert (parsed.format, parsed.dtype, parsed.is_npy) == (form, dtype, True)


def test_a_raw_stream_of_o2_is_read():
    parsed = parse_tensor("Sub.Default_network_Sub-op0.10.10.1735011096427368.input.0.ND.BF16")
    assert parsed is not None
    assert (parsed.operator.task, parsed.format, parsed.dtype, parsed.is_npy) == (10, "ND", "BF16", False)


def test_constants_and_parameters_are_read():
    parsed = parse_tensor("Parameter.data-5.0.0.1623124369613540.output.0.DefaultFormat.npy")
    assert parsed is not None
    assert (parsed.operator.type, parsed.operator.name) == ("Parameter", "data-5")


@pytest.mark.parametrize(
    "name",
    [
        "statistic.csv",
        "mapping.csv",
        "712549004.npy",
        "Conv2D.json",
        "a.b.npy",
        "",
        "A.b.0.0.1.output.0.ND.bin",
        "x" * 40,
        "1" * 32,
    ],
)
def test_other_files_are_not_tensors(name):
    assert parse_tensor(name) is None


def test_async_names_with_and_without_a_stream():
    assert parse_async("Add.Default_Add-op1.2.161243956333802") == OperatorName(
        "Add", "Default_Add-op1", 2, 0, 161243956333802
    )
    assert parse_async("Add.Default_Add-op1.2.7.161243956333802") == OperatorName(
        "Add", "Default_Add-op1", 2, 7, 161243956333802
    )
    assert parse_async("Add.Default_Add-op1") is None


words = st.text(st.characters(categories=["Lu", "Ll", "Nd"], include_characters="-_"), min_size=1, max_size=20)


@given(words, words, st.integers(0, 999), st.integers(0, 99), st.integers(10**9, 10**16), st.integers(0, 99))
def test_a_joined_name_can_be_split_again(kind, name, task, stream, time, slot):
    parsed = parse_tensor(f"{kind}.{name}.{task}.{stream}.{time}.input.{slot}.ND.Int8.npy")
    assert parsed is not None
    assert parsed.operator == OperatorName(kind, name, task, stream, time)
    assert (parsed.io, parsed.slot) == ("input", slot)


@given(words)
def test_a_shortened_name_is_32_digits_and_always_the_same(name):
    short = names.shorten(name + ".npy")
    assert short == names.shorten(name + ".npy")
    assert len(short) == 36
    assert short[:32].isdecimal()


def test_names_in_files_have_no_separators():
    assert names.spell_for_file("Default/net work\\a.b") == "Default_net_work_a_b"


def test_mapping_rows_that_are_not_names_are_left_out(tmp_path):
    (tmp_path / "mapping.csv").write_text('1.npy,"a,b.npy"\n2.npy,../evil\n3.npy\n\n4.npy,\n5.npy, ok.npy\n')
    assert names.read_mapping(tmp_path) == {"1.npy": "a,b.npy", "5.npy": "ok.npy"}


def test_raw_bytes_have_their_shape_and_type_in_the_name(tmp_path):
    for shape, token in (((2, 3), "2x3"), ((), "scalar"), ((0, 4), "0x4")):
        parsed = parse_tensor(f"Sub.Default_Sub-op0.0.0.17.output.1.{token}.Int16.bin")
        assert parsed is not None
        assert (parsed.shape, parsed.format, parsed.dtype, parsed.is_npy) == (shape, "", "Int16", False)
        assert raw_name(parsed, shape, "Int16") == f"Sub.Default_Sub-op0.0.0.17.output.1.{token}.Int16.bin"
    assert parse_tensor("Sub.Default_Sub-op0.0.0.17.output.1.2x3.Unheard.bin") is None
    assert parse_tensor("Sub.Default_Sub-op0.0.0.17.output.1.2x3.bin") is None


def test_raw_bytes_under_a_name_that_is_too_long_are_found_by_the_mapping(tmp_path):
    place = tmp_path / "rank_0" / "N" / "0" / "0"
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    name = f"Add.{'long_' * 60}Add-op0.0.0.17.output.0.DefaultFormat.Int32.npy"
    Saver(place, (), raw=True).write("3.npy", name, array)
    (tensor,) = GraphDump(tmp_path).tensors
    assert len(tensor.file) == 36
    assert tensor.operator.startswith("long_long_")
    assert GraphDump(tmp_path).value(tensor).tolist() == array.tolist()
    (place / tensor.file).write_bytes(b"short")
    with pytest.raises(DumpError, match="5 bytes, which is not a multiple of the size of int32"):
        GraphDump(tmp_path).value(tensor)
    (place / tensor.file).write_bytes(b"0" * 28)
    with pytest.raises(DumpError, match="28 bytes, which does not fit int32 of shape"):
        GraphDump(tmp_path).value(tensor)
