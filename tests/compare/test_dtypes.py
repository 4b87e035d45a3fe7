"""Every dtype of torch, numpy and ml_dtypes: pairs against float64, and verdicts that do not depend on the side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "pytorch"))
from collecting import configured

from msprobe.compare import compare
from msprobe.compare.measure import tensors
from msprobe.compare.measure.tensors import compare_arrays
from msprobe.pytorch import PrecisionDebugger

NUMPY = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
ML = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
      "float4_e2m1fn", "int4", "uint4")  # fmt: skip
KINDS = {**{name: np.dtype(name) for name in NUMPY}, **{name: np.dtype(getattr(ml_dtypes, name)) for name in ML}}
ONE = np.array([1, 2, 4, 1, 0.5, 2, 1, 1.0])
OTHER = np.array([1, 4, 4, 2, 0.5, 1, 1, 1.0])


def wide(array: Any) -> Any:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize("ours", KINDS)
def test_a_pair_of_dtypes_is_measured_as_in_float64(ours: str) -> None:
    for theirs in KINDS:
        check_pair(ours, theirs)


def check_pair(ours: str, theirs: str) -> None:
    x, y = ONE.astype(KINDS[ours]), OTHER.astype(KINDS[theirs])
    there, back = compare_arrays(x, y), compare_arrays(y, x)
    away = np.abs(wide(x) - wide(y))
    parts = [np.stack([part.real, part.imag]) for part in (wide(x) + 0j, wide(y) + 0j)]
    assert there.max_abs == pytest.approx(away.max(), rel=1e-6)
    assert there.euclidean == pytest.approx(np.linalg.norm(away), rel=1e-6)
    assert there.different == int((parts[0] != parts[1]).sum())
    same = ("max_abs", "euclidean", "different", "norm_change", "relative_l2", "cosine")
    for name in same:
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-9, nan_ok=True), name
    assert (there.distance > 0) == (back.distance > 0) == bool(away.any())


def packed(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(dtype)


def values(name: str, kind: str) -> torch.Tensor:
    """right, more (1.75 times as much), sign (turned round) or order."""
    dtype = getattr(torch, name)
    if name in ("float4_e2m1fn_x2", "int4", "uint4"):
        return packed({"right": [0x12, 0x23, 0x31], "more": [0x24, 0x35, 0x42], "sign": [0x9A, 0xAB, 0xB9],
                       "order": [0x31, 0x23, 0x12]}[kind], dtype)  # fmt: skip
    x = torch.tensor([4.0, 8.0, 12.0, 16.0, 2.0, 32.0], dtype=torch.float64)
    powers = name == "float8_e8m0fnu"  # powers of two, without a sign
    x = {"right": x, "more": x * (4 if powers else 1.75), "sign": x * 8 if powers else -x, "order": x.flip(0)}[kind]
    if dtype.is_complex:
        return (x * (1 + 2j)).to(dtype) if kind != "sign" else (x.abs() * (1 - 2j)).to(dtype)
    return x.to(dtype)


def dump(path: Path, name: str, kind: str, task: str, mode: str) -> Path:
    return dump_of(path, values(name, kind), task, mode)


def dump_of(path: Path, tensor: torch.Tensor, task: str, mode: str) -> Path:
    section = {"summary_mode": mode} if mode else {}
    debugger = PrecisionDebugger(configured(path, task=task, level="debug", section=section))
    debugger.start()
    debugger.save(tensor, "x")
    debugger.stop()
    debugger.step()
    return path / "dump"


TORCH = [
    name
    for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
                 "float8_e8m0fnu", "float4_e2m1fn_x2", "int4", "uint4", "int8", "uint16", "uint32", "uint64",
                 "complex32", "complex64")
    if hasattr(torch, name)
]  # fmt: skip
UNSIGNED = ("uint4", "uint16", "uint32", "uint64")
"""Nothing to turn round."""


MODES = pytest.mark.parametrize(("task", "mode"), [("statistics", "statistics"), ("statistics", "md5"), ("tensor", "")])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", TORCH)
@MODES
def test_a_fault_is_found_from_both_sides(tmp_path: Path, name: str, task: str, mode: str) -> None:
    right = dump(tmp_path / "right", name, "right", task, mode)
    assert compare(right, dump(tmp_path / "again", name, "right", task, mode)).exit_code == 0
    for kind in ("more", "sign", "order"):
        if (kind == "sign" and name in UNSIGNED) or (kind in ("sign", "order") and mode == "statistics"):
            continue  # the statistics of complex numbers, and of an order, are the same
        wrong = dump(tmp_path / kind, name, kind, task, mode)
        assert (compare(wrong, right).exit_code, compare(right, wrong).exit_code) == (1, 1), kind


def placed(layout: str, other: bool) -> torch.Tensor:
    """The same stored values, at other places."""
    stored = torch.tensor([1.0, 2.0, 3.0, 4.0])
    if layout == "coo":
        return torch.sparse_coo_tensor([[0, 0, 1, 2], [0, 1, 1, 3 if other else 2]], stored, (4, 4)).coalesce()
    if layout == "csr":
        return torch.sparse_csr_tensor([0, 1, 2, 3, 4], [0, 1, 2, 0 if other else 3], stored, (4, 4))
    return torch.nested.nested_tensor(list(stored.split([1, 3] if other else [2, 2])), layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "nested"])
@MODES
def test_values_at_other_places_are_found(tmp_path: Path, layout: str, task: str, mode: str) -> None:
    right = dump_of(tmp_path / "right", placed(layout, other=False), task, mode)
    assert compare(right, dump_of(tmp_path / "again", placed(layout, other=False), task, mode)).exit_code == 0
    wrong = dump_of(tmp_path / "wrong", placed(layout, other=True), task, mode)
    for sides in ((wrong, right), (right, wrong)):
        found = compare(*sides)
        assert (found.exit_code, [row.verdict for _, row in found.rows()]) == (1, ["error"])
        assert "the values are at other places" in next(row.reason for _, row in found.rows())


def spoilt(kind: str, other: bool) -> torch.Tensor:
    """Data whose statistics are the same on both sides, and whose bytes are not."""
    inf = float("inf")
    sides: dict[str, tuple[Any, Any, torch.dtype]] = {
        "one-hot": ([0, 1, 0, 0], [0, 0, 1, 0], torch.int64),
        "mask of booleans": ([True, False, True], [True, True, False], torch.bool),
        "token ids": ([5, 9, 2, 7], [9, 5, 7, 2], torch.int64),
        "mask of -inf": ([0, -inf, 0, 0], [0, 0, -inf, 0], torch.float32),
        "mask of -1e9": ([0, -1e9, 0, 0], [0, 0, -1e9, 0], torch.float32),
        "beside an infinity": ([inf, 1, 5, 0], [inf, 1, 3, 0], torch.float32),
        "above 2**53": ([2**60 + 1, 7, 0], [2**60 + 1, 6, 1], torch.int64),
        "conjugate": ([1 + 2j, 3 - 1j], [1 - 2j, 3 + 1j], torch.complex64),
    }
    right, wrong, dtype = sides[kind]
    return torch.tensor(wrong if other else right, dtype=dtype)


@pytest.mark.parametrize(
    "kind",
    ["one-hot", "mask of booleans", "token ids", "mask of -inf", "mask of -1e9", "beside an infinity", "above 2**53",
     "conjugate"],
)  # fmt: skip
@pytest.mark.parametrize(("task", "mode"), [("statistics", "md5"), ("tensor", "")])
def test_other_bytes_with_the_same_statistics_are_found(tmp_path: Path, kind: str, task: str, mode: str) -> None:
    right = dump_of(tmp_path / "right", spoilt(kind, other=False), task, mode)
    wrong = dump_of(tmp_path / "wrong", spoilt(kind, other=True), task, mode)
    assert (compare(wrong, right).exit_code, compare(right, wrong).exit_code) == (1, 1)


ODD = {
    "float64, huge": ([1e300, 2e300], [1e300, 3e300], np.float64),
    "float64, of both signs": ([1.5e308, 1.0], [-1.5e308, 1.0], np.float64),
    "float64, tiny": ([1e-300, 3e-300], [1e-300, 4e-300], np.float64),
    "float64, subnormal": ([5e-324], [1e-323], np.float64),
    "complex128": ([1e300 + 1e300j], [1e300 + 2e300j], np.complex128),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("native", [True, False])
def test_squares_beyond_float64_hide_nothing(name: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(tensors, "_native", None)
    one, other, dtype = ODD[name]
    x, y = np.array(one, dtype), np.array(other, dtype)
    there, back, same = compare_arrays(x, y), compare_arrays(y, x), compare_arrays(x, x.copy())
    assert min(there.distance, back.distance, there.relative_l2, back.relative_l2) > 0.1
    assert (there.max_abs, there.norm_change) == pytest.approx((back.max_abs, back.norm_change))
    assert (same.distance, same.different) == (0.0, 0)


ONES = {
    "complex64": (torch.tensor([1 + 2j]), torch.tensor([2 + 1j])),
    "uint64": (torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([2**64 - 2], dtype=torch.uint64)),
    "int64": (torch.tensor([2**62]), torch.tensor([2**62 + 1])),
    "float64": (torch.tensor([1.0], dtype=torch.float64), torch.tensor([1 + 2.0**-52], dtype=torch.float64)),
}


@pytest.mark.parametrize("name", ONES)
def test_equal_elements_with_other_checksums_are_a_difference(tmp_path: Path, name: str) -> None:
    one, other = (dump_of(tmp_path / f"{n}", x, "statistics", "md5") for n, x in enumerate(ONES[name]))
    again = dump_of(tmp_path / "again", ONES[name][0], "statistics", "md5")
    assert [compare(one, other).verdict, compare(other, one).verdict] == ["differs", "differs"]
    assert compare(one, again).verdict == "same"


def test_zeros_of_other_signs_are_the_same(tmp_path: Path) -> None:
    one, other = (dump_of(tmp_path / str(x), torch.tensor([x, x]), "statistics", "md5") for x in (0.0, -0.0))
    assert compare(one, other).verdict == "same"
