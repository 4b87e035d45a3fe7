"""Tensor files: exact for every dtype, read without torch, and deaf to hostile content."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.codec import Payload, encode, load
from msprobe.stats import dtypes

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
DTYPES = [row.name for row in dtypes.TABLE]
SHAPES = [(), (0,), (1,), (5,), (2, 0, 3), (2, 3, 4), (1, 300, 2)]
IN_NUMPY = [name for name in DTYPES if name != "complex32"]


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def some_tensor(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    count = int(np.prod(shape)) * torch.empty((), dtype=kind).element_size()
    noise = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, count, dtype=np.uint8)
    return (
        torch.frombuffer(bytearray(noise.tobytes() + b"\0" * 16), dtype=torch.uint8)[:count].view(kind).reshape(shape)
    )


def save(path: Path, dtype: str, shape: tuple[int, ...], data: bytes) -> Path:
    path.write_bytes(b"".join(bytes(part) for part in encode(Payload(dtype, shape, data, path.suffix[1:]))))  # type: ignore[call-overload]
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_torch_loads_our_pt_files_bit_for_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = some_tensor(dtype, shape)
    path = save(tmp_path / "t.pt", dtype, shape, raw_bytes(tensor))
    loaded = torch.load(path, weights_only=True)
    assert loaded.dtype == tensor.dtype
    assert loaded.stride() == tensor.stride()
    assert loaded.shape == tensor.shape
    assert raw_bytes(loaded) == raw_bytes(tensor)


@pytest.mark.parametrize("dtype", IN_NUMPY)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mmap", [False, True])
def test_we_read_what_torch_and_we_wrote(tmp_path: Path, dtype: str, shape: tuple[int, ...], mmap: bool) -> None:
    tensor = some_tensor(dtype, shape)
    torch.save(tensor, tmp_path / "torch.pt")
    save(tmp_path / "ours.pt", dtype, shape, raw_bytes(tensor))
    save(tmp_path / "ours.npy", dtype, shape, raw_bytes(tensor))
    for name in ("torch.pt", "ours.pt", "ours.npy"):
        array = load(tmp_path / name, mmap)
        assert array.dtype.name == dtype
        assert array.shape == shape
        assert array.tobytes() == raw_bytes(tensor)


def test_a_pt_file_is_a_sound_zip_archive_with_aligned_data(tmp_path: Path) -> None:
    path = save(tmp_path / "t.pt", "float32", (3,), np.arange(3, dtype=np.float32).tobytes())
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None  # every CRC-32 is right
        assert archive.namelist() == ["archive/version", "archive/byteorder", "archive/data.pkl", "archive/data/0"]
    assert path.read_bytes().find(np.arange(3, dtype=np.float32).tobytes()) % 64 == 0


def test_a_pt_file_of_more_than_four_gigabytes_is_a_sound_zip64_archive(tmp_path: Path) -> None:
    from msprobe.dump.tensor_files import pt_file

    size = (4 << 30) + 64
    head, middle, tail, end = pt_file._frame("uint8", (size,), size)
    path = tmp_path / "large.pt"
    with path.open("wb") as file:  # sparse: zeros that take no room
        file.write(head + b"\0\0\0\0" + middle)
        file.seek(size, os.SEEK_CUR)
        file.write(tail + b"\0\0\0\0" + end)
    array = load(path, mmap=True)
    assert array.shape == (size,)
    assert array[-1] == 0
    assert torch.load(path, weights_only=True, mmap=True).shape == (size,)


def test_numpy_opens_our_bfloat16_file_and_our_reader_restores_the_type(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, float("nan")], dtype=ml_dtypes.bfloat16)
    path = save(tmp_path / "t.npy", "bfloat16", (3,), values.tobytes())
    plain = np.load(path, allow_pickle=False)
    assert plain.dtype == np.dtype("V2")
    assert plain.tobytes() == values.tobytes()
    assert load(path).dtype == ml_dtypes.bfloat16
    np.save(tmp_path / "n.npy", values)
    assert load(tmp_path / "n.npy").dtype == ml_dtypes.bfloat16


def test_the_bfloat16_files_of_mindspore_dump_are_read(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
    text = b"{'descr': '<E2', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values.tobytes())
    assert load(tmp_path / "t.npy").tolist() == [1.5, -2.0]


def test_complex32_comes_back_as_complex64(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(torch.tensor([1 + 2j, -3j], dtype=torch.complex64).to(torch.complex32), tmp_path / "t.pt")
    assert load(tmp_path / "t.pt").tolist() == [1 + 2j, -3j]


def test_views_conjugates_and_parameters_saved_by_torch_are_read_as_torch_shows_them(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    cases = {
        "transposed": base.t()[1:, ::2],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "offset": base[2:],
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch._neg_view(torch.tensor([1.0, -2.0])),
        "parameter": torch.nn.Parameter(base),
        "fortran": torch.tensor(np.asfortranarray(np.arange(6).reshape(2, 3))),
    }
    for name, tensor in cases.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
        shown = tensor.detach().resolve_conj().resolve_neg().numpy()
        for mmap in (False, True):
            np.testing.assert_array_equal(load(tmp_path / f"{name}.pt", mmap), shown, err_msg=name)


def test_a_fortran_ordered_npy_is_read_in_its_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.save(tmp_path / "t.npy", array)
    np.testing.assert_array_equal(load(tmp_path / "t.npy", True), array)


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_a_file_cut_anywhere_is_refused_in_one_sentence(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"t{suffix}", "float32", (40,), bytes(160))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        for mmap in (False, True):
            with pytest.raises(DumpError, match=r"t\.(pt|npy)"):
                load(path, mmap)


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def archive(
    path: Path, program: bytes, data: bytes = b"", order: bytes = b"little", method: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("archive/data.pkl", program)
        made.writestr("archive/byteorder", order)
        made.writestr("archive/data/0", data)
        made.writestr("archive/version", b"3\n")
    return path


def tensor_program(
    shape: tuple[Any, ...] = (2,), stride: tuple[Any, ...] = (1,), offset: Any = 0, key: str = "0"
) -> bytes:
    def integers(values: tuple[Any, ...]) -> bytes:
        return b"(" + b"".join(pickle.dumps(value, 2)[2:-1] for value in values) + b"t"

    text = lambda value: b"X" + struct.pack("<I", len(value)) + value.encode()  # noqa: E731
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(("
        + text("storage")
        + b"ctorch\nFloatStorage\n"
        + text(key)
        + text("cpu")
        + b"K\x02tQ"
        + pickle.dumps(offset, 2)[2:-1]
        + integers(shape)
        + integers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )


def test_the_program_that_the_hostile_tests_bend_is_read_when_straight(tmp_path: Path) -> None:
    assert load(archive(tmp_path / "t.pt", tensor_program(), bytes(8))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_anything_is_refused_and_nothing_happens(tmp_path: Path, protocol: int) -> None:
    path = archive(tmp_path / "t.pt", pickle.dumps(Evil(tmp_path / "owned"), protocol))
    with pytest.raises(DumpError, match=r"which no tensor needs|damaged"):
        load(path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.", "names 'os.system'"),
        (b"cbuiltins\neval\n.", "names 'builtins.eval'"),
        (b"ctorch\nload\n.", "names 'torch.load'"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "unexpected arguments"),
        (b"K\x01)R.", "calls something that is not a function"),
        (b"\x80\x02K\x01.", "holds a int, not one tensor"),
        (b"", "ends too early"),
        (b"h\x05.", "damaged"),
        (b"R.", "damaged"),
        (b"X\xff\xff\xff\xff", "ends too early"),
        (b"b.", "opcode b'b'"),
        (b"\x93.", "opcode"),
        (b"i" + b"os\nsystem\n.", "opcode b'i'"),
        (tensor_program(key="../../x"), "no plain number"),
        (tensor_program(key="7"), "its data is missing"),
        (tensor_program(shape=(1 << 60,)), "needs"),
        (tensor_program(offset=1), "needs"),
        (tensor_program(offset=-1), "not a number"),
        (tensor_program(shape=(-1,)), "not a number"),
        (tensor_program(stride=(-1,)), "not a number"),
        (tensor_program(shape=(True,)), "not a number"),
        (tensor_program(shape=(2, 2)), "do not fit together"),
        (tensor_program(shape=(1 << 40, 1 << 40), stride=(0, 0)), "expands"),
        (tensor_program(shape=(1,) * 65, stride=(1,) * 65), "do not fit together"),
        (b"(" * (1 << 20) + b"t.", "too large"),
    ],
)  # fmt: skip
def test_a_program_that_is_not_a_tensor_is_refused_with_its_reason(tmp_path: Path, program: bytes, said: str) -> None:
    with pytest.raises(DumpError) as caught:
        load(archive(tmp_path / "t.pt", program, bytes(8)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_random_programs_only_ever_raise_our_error(program: bytes) -> None:
    read_or_refuse(program)


def read_or_refuse(program: bytes) -> None:
    """A tensor whose numbers are numbers, or one sentence."""
    from msprobe.dump.tensor_files import pt_program

    try:
        found = pt_program.read(program)
    except DumpError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "\n" not in refusal
        return
    assert isinstance(found, pt_program.Tensor)
    assert len(found.shape) == len(found.strides)
    assert all(type(number) is int and number >= 0 for number in (found.offset, *found.shape, *found.strides))


@given(st.integers(0, len(tensor_program()) - 1), st.integers(0, 255))
@settings(max_examples=500)
def test_a_program_with_one_byte_changed_is_read_or_refused(position: int, value: int) -> None:
    program = bytearray(tensor_program())
    program[position] = value
    read_or_refuse(bytes(program))


def test_compressed_big_endian_and_doubled_archives_are_refused(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "bomb.pt", tensor_program(), bytes(1 << 24), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(DumpError, match="compressed"):
        load(bomb)
    with pytest.raises(DumpError, match="little-endian"):
        load(archive(tmp_path / "big.pt", tensor_program(), bytes(8), order=b"big"))
    with zipfile.ZipFile(tmp_path / "two.pt", "w") as made:
        made.writestr("a/data.pkl", tensor_program())
        made.writestr("b/data.pkl", tensor_program())
    with pytest.raises(DumpError, match="2 pickle programs"):
        load(tmp_path / "two.pt")


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an npy file at all",
        npy(b"__import__('os').system('id')"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
        npy(b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}", bytes(8)),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,)}", bytes(8)),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", bytes(8)),
        npy(b"{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}", bytes(8)),
        npy(b"{'descr': '<V999999999999992', 'fortran_order': False, 'shape': (2, 3)}", bytes(12)),  # less than 0 bytes
        npy(b"{'descr': '<q9', 'fortran_order': False, 'shape': (1,)}", bytes(9)),
        npy(b"{'descr': '<V2', 'fortran_order': False, 'shape': (1,)} # dtype: float64", bytes(8)),
        npy(b"[" * 5000, bytes(8)),
        npy(b"{'descr': '<f4'}", bytes(8)),
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + bytes(100),
    ],
)
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_a_hostile_or_damaged_npy_is_refused(tmp_path: Path, content: bytes, mmap: bool) -> None:
    (tmp_path / "t.npy").write_bytes(content)
    with pytest.raises(DumpError):
        load(tmp_path / "t.npy", mmap=mmap)


def test_an_array_of_objects_saved_by_numpy_is_never_unpickled(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil(tmp_path / "owned")], dtype=object), allow_pickle=True)
    (tmp_path / "t.npy").write_bytes(buffer.getvalue())
    with pytest.raises(DumpError, match="Python objects"):
        load(tmp_path / "t.npy")
    assert not (tmp_path / "owned").exists()


def test_reading_a_pt_file_imports_neither_torch_nor_pickle(tmp_path: Path) -> None:
    path = save(tmp_path / "t.pt", "bfloat16", (2,), bytes(4))
    code = (
        "import sys; from pathlib import Path\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('torch', 'mindspore'): raise AssertionError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from msprobe.dump.tensor_files.codec import load\n"
        f"print(load(Path({str(path)!r})).dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "bfloat16\n"
    package = Path(sys.modules["msprobe.dump.tensor_files.codec"].__file__ or "").parent
    assert not [file.name for file in package.glob("*.py") if "import pickle" in file.read_text()]


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes do not fit a float32 tensor"):
        encode(Payload("float32", (1,), b"abc", "pt"))


def test_an_empty_tensor_with_a_shape_that_numpy_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.pt"
    torch.save(torch.empty(0).as_strided((0, 2**40, 2**40), (1, 1, 1)), path)
    with pytest.raises(DumpError, match="more than numpy can hold"):
        load(path)
