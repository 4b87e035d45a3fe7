"""The metrics of two tensors: their definitions, the kernel and its twin, and files that are not what they say."""

from __future__ import annotations

import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msprobe.compare.measure import tensors
from msprobe.compare.measure.tensors import NotComparable, compare_arrays, compare_files, twin

Array = np.ndarray[Any, Any]


def test_metrics_are_the_documented_ones() -> None:
    golden = np.array([1.0, 2.0, 0.0, -4.0], np.float32)
    target = np.array([1.0, 2.01, 0.0, -4.0], np.float32)
    found = compare_arrays(target, golden)
    a, b = target.astype(np.float64), golden.astype(np.float64)
    assert found.cosine == pytest.approx(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    assert found.euclidean == pytest.approx(np.linalg.norm(a - b))
    assert found.max_abs == pytest.approx(np.abs(a - b).max())
    assert found.max_relative == pytest.approx(0.005, rel=1e-3)
    assert found.one_thousandth == 0.75
    assert (found.different, found.elements) == (1, 4)


def test_zeros_and_empty_tensors_have_their_agreed_values() -> None:
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert compare_arrays(zero, zero).cosine == 1.0
    assert math.isnan(compare_arrays(zero, one).cosine)
    assert compare_arrays(one, zero).max_relative == pytest.approx(1 / np.finfo(np.float32).eps)
    assert compare_arrays(np.zeros((0, 3)), np.zeros((0, 3))).distance == 0.0


def test_the_same_nan_and_infinity_are_left_out_and_others_are_counted_and_placed() -> None:
    golden = np.array([np.nan, np.inf, 1.0, 2.0, -np.inf] * 1000, np.float32)
    assert compare_arrays(golden.copy(), golden).distance == 0.0
    target = golden.copy()
    target[7] = np.nan
    target[9] = np.inf
    found = compare_arrays(target, golden)
    assert (found.special, found.first_special) == (2, 7)
    assert found.distance == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64", "uint8", "bool", "complex64"])
def test_every_dtype_is_compared(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    golden = np.arange(40).astype(kind)
    target = golden.copy()
    assert compare_arrays(target, golden).distance == 0.0
    target[3] = golden[4] if dtype != "bool" else not golden[3]
    assert compare_arrays(target, golden).different == 1


def test_bf16_against_fp32_is_measured_in_float32() -> None:
    golden = np.linspace(-3, 3, 5000, dtype=np.float32)
    found = compare_arrays(golden.astype(ml_dtypes.bfloat16), golden)
    assert 0 < found.distance < 2.0**-8


def test_a_mask_does_not_hide_other_elements() -> None:
    golden = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    golden[::2] = -1e9
    target = golden.copy()
    target[1] += 0.5
    assert compare_arrays(target, golden).distance > 0.1


def test_memory_order_does_not_matter() -> None:
    golden = np.arange(12.0).reshape(3, 4)
    assert compare_arrays(np.asfortranarray(golden), golden).distance == 0.0
    assert compare_arrays(np.asfortranarray(golden), np.asfortranarray(golden)).distance == 0.0


def test_blocks_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = np.random.default_rng(1).standard_normal(5000).astype(np.float16)
    target = golden + np.float16(0.25)
    target[3000] = np.nan
    whole = compare_arrays(target, golden)
    monkeypatch.setattr(tensors, "BLOCK", 64)
    parts = compare_arrays(target, golden)
    assert whole == pytest.approx(parts, rel=1e-12)
    assert parts.first_special == 3000


@pytest.mark.skipif(
    tensors._native is None, reason="the C kernel is NOT built here: its twin was not checked against it"
)
@given(
    st.sampled_from(["f", "d"]).flatmap(
        lambda kind: st.tuples(
            *[
                hnp.arrays(
                    np.dtype(kind),
                    37,
                    elements=st.floats(-1e3, 1e3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0]),
                )
            ]
            * 2
        )
    ),
    st.floats(0, 10),
)
@settings(max_examples=200, deadline=None)
def test_the_kernel_and_its_twin_agree(arrays: tuple[Array, Array], scale: float) -> None:
    a, b = np.tile(arrays[0], 150), np.tile(arrays[1], 150)
    assert tensors._native is not None
    native = tensors._native(a, b, a.dtype.char, 1e-7, scale)
    other = twin(a, b, a.dtype.char, 1e-7, scale)
    assert native == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.skipif(tensors._native is None, reason="the C kernel is NOT built here")
def test_the_kernel_refuses_buffers_that_do_not_fit() -> None:
    assert tensors._native is not None
    for a, b in ((b"12345678", b"1234"), (b"123", b"123")):
        with pytest.raises(ValueError, match="same length"):
            tensors._native(a, b, "f", 1e-7, 1.0)


def test_other_shapes_missing_and_cut_files_are_reasons_not_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((3, 2)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    (tmp_path / "noise.npy").write_bytes(b"not an array")
    for other, reason in (("b", "shape"), ("none", "missing"), ("cut", "unreadable"), ("noise", "unreadable")):
        with pytest.raises(NotComparable, match=f"^{reason}"):
            compare_files(tmp_path / "a.npy", tmp_path / f"{other}.npy")


class _Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("kind", ["npy", "pt", "legacy pt"])
def test_pickles_in_tensor_files_are_never_executed(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"bomb.{kind[-3:].strip()}"
    if kind == "npy":
        path = tmp_path / "bomb.npy"
        np.save(path, np.array([_Bomb()], dtype=object), allow_pickle=True)
    elif kind == "pt":
        path = tmp_path / "bomb.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("bomb/data.pkl", pickle.dumps(_Bomb()))
            archive.writestr("bomb/version", "3")
    else:
        path = tmp_path / "bomb.pt"
        path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(NotComparable, match=r"^unreadable"):
        compare_files(path, path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_64_bit_integers_are_compared_as_integers(dtype: Any) -> None:
    golden = np.array([2**60, 5, 7], dtype)
    found = compare_arrays(golden + dtype(1), golden)
    assert found.different == 3
    assert found.distance > 0
    target = golden.copy()
    target[0] += dtype(1)  # float64 has no such number
    found = compare_arrays(target, golden)
    assert (found.different, found.max_abs) == (1, 1.0)
    assert found.distance > 0


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_imaginary_part_is_compared(dtype: Any) -> None:
    golden = np.array([1 + 2j, 3, 4j], dtype)
    found = compare_arrays(golden.conj(), golden)
    assert found.different == 2
    assert found.max_abs == 8.0
    assert compare_arrays(golden.copy(), golden).distance == 0.0


def test_elements_that_are_not_aligned_are_compared() -> None:
    """The header of an npy file may have any length."""
    values = np.arange(6, dtype=np.float32)
    moved = np.frombuffer(b"x" + values.tobytes(), np.float32, offset=1)
    assert not moved.flags.aligned
    assert compare_arrays(moved, values).relative_l2 == 0.0
    assert compare_arrays(moved, values + 1).relative_l2 > 0.0
