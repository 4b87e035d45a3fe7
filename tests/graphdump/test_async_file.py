"""Asynchronous files written byte by byte from the field table are read, and wrong ones are refused."""

from __future__ import annotations

import struct
from pathlib import Path

import async_samples as samples
import ml_dtypes
import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from msprobe.graphdump.files import schema
from msprobe.graphdump.files.async_file import AsyncFile, AsyncFileError
from msprobe.graphdump.files.datatypes import TYPES


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "Add.Default_Add-op1.2.3.1623124369613540"
    path.write_bytes(data)
    return path


def test_inputs_outputs_and_buffers_are_found_in_the_order_of_their_bytes(tmp_path):
    first, second = np.arange(6, dtype="<f4").reshape(2, 3), np.arange(4, dtype="<i8")
    data = samples.dump_file(
        inputs=[(samples.op_input(1, 2, (2, 3), 24), first.tobytes())],
        outputs=[(samples.op_output(8, 0, (4,), 32, original=(4,)), second.tobytes())],
        buffers=[b"scratch"],
    )
    with AsyncFile(write(tmp_path, data)) as file:
        assert (file.op_name, file.version, file.dump_time) == ("Default/Add-op1", "1.0", 1623124369613540)
        assert [(s.name, s.format, s.type.name) for s in file.slots] == [
            ("input.0", "ND", "float32"),
            ("output.0", "NCHW", "int64"),
            ("buffer.0", "ND", "uint8"),
        ]
        np.testing.assert_array_equal(file.array(file.slots[0]), first)
        np.testing.assert_array_equal(file.array(file.slots[1]), second)
        assert file.array(file.slots[2]).tobytes() == b"scratch"
        assert file.unused_bytes == 0


@pytest.mark.parametrize("number", sorted(TYPES))
def test_every_data_type_is_read_bit_exactly(tmp_path, number):
    kind = TYPES[number]
    raw = np.random.default_rng(number).integers(0, 256, kind.bytes_of(24), np.uint8)
    if kind.name == "bool":
        raw &= 1
    data = samples.dump_file(outputs=[(samples.op_output(number, 2, (4, 6), raw.size), raw.tobytes())])
    with AsyncFile(write(tmp_path, data)) as file:
        array = file.array(file.slots[0])
        assert array.shape == (4, 6)
        if kind.bits >= 8:
            assert array.tobytes() == raw.tobytes()
        elif kind.name == "int4":
            nibbles = [part for byte in raw.tolist() for part in (byte & 15, byte >> 4)]
            assert array.reshape(-1).tolist() == [value - 16 if value > 7 else value for value in nibbles]
        else:
            bits = [byte >> place & 1 for byte in raw.tolist() for place in range(8)]
            assert array.reshape(-1).tolist() == bits


def test_an_odd_number_of_int4_leaves_half_a_byte_unread(tmp_path):
    data = samples.dump_file(outputs=[(samples.op_output(28, 2, (3,), 2), bytes([0x21, 0xFF]))])
    with AsyncFile(write(tmp_path, data)) as file:
        assert file.array(file.slots[0]).tolist() == [1, 2, -1]


def test_bfloat16_has_the_values_that_were_written(tmp_path):
    values = np.array([1.5, -2.0, np.inf], ml_dtypes.bfloat16)
    data = samples.dump_file(outputs=[(samples.op_output(27, 2, (3,), 6), values.tobytes())])
    with AsyncFile(write(tmp_path, data)) as file:
        assert file.array(file.slots[0]).astype(np.float32).tolist() == [1.5, -2.0, np.inf]


def test_no_dimensions_mean_a_scalar_or_a_flat_list(tmp_path):
    data = samples.dump_file(
        outputs=[
            (samples.op_output(1, 2, (), 4), b"\0" * 4),
            (samples.op_output(1, 2, (), 12), b"\0" * 12),
        ]
    )
    with AsyncFile(write(tmp_path, data)) as file:
        assert [slot.stored_shape for slot in file.slots] == [(), (3,)]


def test_data_inside_the_message_is_read_too(tmp_path):
    message = samples.op_input(7, 2, (2,), 8) + samples.blob(4, struct.pack("<2i", 5, -6))
    header = samples.blob(4, message)
    with AsyncFile(write(tmp_path, struct.pack("<Q", len(header)) + header)) as file:
        assert file.array(file.slots[0]).tolist() == [5, -6]


HUGE = 2**62


def test_a_message_alone_is_read_like_one_with_its_length_before_it(tmp_path):
    message = samples.op_input(7, 2, (2,), 8) + samples.blob(4, struct.pack("<2i", 5, -6))
    alone = samples.blob(1, b"2.0") + samples.blob(4, message)
    with AsyncFile(write(tmp_path, alone)) as file:
        (slot,) = file.slots
        assert file.array(slot).tolist() == [5, -6]
        assert file.unused_bytes == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too small for a dump file: 0 bytes"),
        (b"1234567", "too small for a dump file: 7 bytes"),
        (struct.pack("<Q", HUGE) + b"x" * 20, f"the header should have {HUGE} bytes, the file has 28"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "the header is not a DumpData message"),
        (
            samples.dump_file(outputs=[(samples.op_output(1, 2, (2,), 8), b"1234")]),
            "output.0: the header declares 8 bytes, only 4 are left; the file is probably cut off",
        ),
        (
            samples.dump_file(outputs=[(samples.op_output(1, 2, (2,), HUGE), b"1234")]),
            f"output.0: the header declares {HUGE} bytes, only 4 are left",
        ),
    ],
)
def test_a_file_that_is_not_a_dump_is_refused(tmp_path, data, message):
    with pytest.raises(AsyncFileError) as error:
        AsyncFile(write(tmp_path, data))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (samples.op_output(1, 2, (HUGE, HUGE), 8), "is too large for any tensor"),
        (samples.op_output(1, 2, (3,), 8), "output.0: 3 of float32 needs 12 bytes, but the header says 8"),
        (samples.op_output(13, 2, (2,), 8), "data type number 13 is not supported"),
        (samples.op_output(1, 2, (1,) * 33, 8), "33 dimensions; at most 32"),
        (samples.op_output(8, 2, (), 7), "needs 0 bytes, but the header says 7"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused_before_anything_is_allocated(tmp_path, described, message):
    size = 7 if "the file says 7" in message else 8
    with AsyncFile(write(tmp_path, samples.dump_file(outputs=[(described, b"x" * size)]))) as file:
        with pytest.raises(AsyncFileError) as error:
            file.array(file.slots[0])
        assert message in str(error.value)


def test_a_directory_or_a_pipe_is_refused_without_waiting(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises((AsyncFileError, IsADirectoryError)):
            AsyncFile(path)


def test_the_proto_file_has_the_fields_of_the_published_table():
    text = Path(schema.__file__).with_name("dump_data.proto").read_text(encoding="utf-8")
    descriptor = schema.descriptor_of(text, "dump_data.proto")
    fields = {m.name: {f.name: f.number for f in m.field} for m in descriptor.message_type}
    assert fields["DumpData"] == {
        "version": 1,
        "dump_time": 2,
        "output": 3,
        "input": 4,
        "buffer": 5,
        "op_name": 6,
    }
    assert list(fields["OpOutput"].items()) == [
        ("data_type", 1),
        ("format", 2),
        ("shape", 3),
        ("original_op", 4),
        ("data", 5),
        ("size", 6),
        ("original_shape", 7),
        ("sub_format", 8),
    ]
    assert fields["OpInput"]["sub_format"] == 7
    assert isinstance(descriptor, descriptor_pb2.FileDescriptorProto)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("message A { int32 a = 1; }", "no package statement"),
        ("package p; message A { map<string, int32> a = 1; }", "cannot read"),
    ],
)
def test_a_proto_file_beyond_the_reader_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        schema.descriptor_of(text, "some.proto")
