"""The kernel's C core built otherwise: without a warning, under sanitizers, and for aarch64 in an emulator.

Every build must print the same bits for the same cases as the extension that this Python uses.
"""

from __future__ import annotations

import math
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tests.stats.tensors import RAW, Tensor, dtypes_finite, random_tensor, special_bits

from msprobe.stats import CRC, LOW_PRECISION, ORDER, STATS, XOR, Stats, dtypes
from msprobe.stats.dtypes import BOOL, INT, UINT

kernel = pytest.importorskip("msprobe.stats._kernel", reason="the C kernel is not built: nothing to compare with")

HERE = Path(__file__).parent
ROOM = HERE.parents[1] / "src" / "msprobe" / "stats"
SOURCE, INCLUDE = ROOM / "native", ROOM / "native" / "include"
CORE = [SOURCE / f"{name}.c" for name in ("measure", "order", "ranges", "chunks", "layout", "tiles", "crc32")]
FLAGS = [
    "-std=gnu11",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{INCLUDE}",
    "-pthread",
]
CC = shutil.which("gcc") or shutil.which("cc")
CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")


def _cases() -> list[tuple[Tensor, int, int]]:
    """Every dtype, special bits and random ones, in several layouts; complex128 far from the range of hypot,
    which differs in the last bit between C libraries."""
    found = []
    rng = np.random.default_rng(1)
    for row in dtypes.TABLE:
        parts = 2 if row.kind == dtypes.COMPLEX else 1
        pool = [0, 1] if row.kind == BOOL else special_bits(row)
        size = row.itemsize // parts
        raws = [random_tensor(row, count, seed=count).raw for count in (0, 1, 37, 4096 + 9, 270_000)]
        for bits in ([], pool, pool if row.kind == BOOL else dtypes_finite(row)):
            if row.name == "complex128" and bits:
                continue
            chosen = rng.choice(np.array(bits or [0], np.uint64), 24 * 35 * parts)
            data = b"".join(int(value).to_bytes(size, "little") for value in chosen)
            raws.append(np.frombuffer(data, RAW[row.itemsize]))
        for raw in raws:
            found.append((Tensor(row, raw), STATS | ORDER | CRC | XOR, 1))
            found.append((Tensor(row, raw), STATS | LOW_PRECISION, 1))
        grid = raws[-1][: 24 * 35].reshape(4, 6, 35)
        for view in (grid.T, grid[::-1, ::2], grid[:, 1:3, ::-3], np.broadcast_to(grid[:, None], (4, 3, 6, 35))):
            found.append((Tensor(row, view), STATS | ORDER, 1))
            found.append((Tensor(row, view), STATS | CRC | XOR, 1))
    threaded = random_tensor(dtypes.BY_NAME["float32"], 1_300_000).raw
    return [*found, (Tensor(dtypes.BY_NAME["float32"], threaded), STATS | ORDER | CRC, 3)]


CASES = _cases()


@pytest.fixture(scope="module")
def case_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "cases.bin"
    with path.open("wb") as file:
        for tensor, want, threads in CASES:
            _, code, shape, strides = tensor.args
            spans = [(n - 1) * step * tensor.row.itemsize for n, step in zip(shape, strides)]
            low = sum(span for span in spans if span < 0) if tensor.raw.size else 0
            high = sum(span for span in spans if span > 0) + tensor.row.itemsize if tensor.raw.size else 0
            start = tensor.raw.__array_interface__["data"][0] + low
            data = b""
            if tensor.raw.size:
                base = tensor.raw
                while isinstance(base.base, np.ndarray):
                    base = base.base
                offset = start - base.__array_interface__["data"][0]
                data = base.tobytes()[offset : offset + high - low]
            head = (code, want, threads, len(shape), -low, len(data), 0)
            file.write(struct.pack(f"<{7 + 2 * len(shape)}q", *head, *shape, *strides) + data)
    return path


def _bits(value: object) -> str:
    number = 0.0 if value is None else float(value)  # type: ignore[arg-type]
    return "7ff8000000000000" if number != number else f"{struct.unpack('<Q', struct.pack('<d', number))[0]:016x}"


def _check(text: str) -> None:
    """Every line of `vectors` against the extension's answer."""
    lines = text.splitlines()
    assert len(lines) == len(CASES)
    for line, (tensor, want, threads) in zip(lines, CASES):
        fields = line.split()
        c: Stats = kernel.measure(*tensor.args, want, threads)
        about = f"{tensor.row.name} {tensor.raw.shape} {tensor.raw.strides} want {want}"
        assert fields[0] == "0", about
        assert fields[4:6] == [_bits(c.mean), _bits(c.norm)], about
        if c.max is not None and tensor.row.kind in (BOOL, INT, UINT):
            at = 8 if tensor.row.name == "uint64" else 6
            assert [int(field) for field in fields[at : at + 2]] == [c.max, c.min], about
        else:
            assert fields[2:4] == [_bits(c.max), _bits(c.min)], about
        assert [int(field) for field in fields[10:15]] == list(c[4:9]), about
        assert int(fields[15], 16) == (c.crc or 0), about
        assert int(fields[16], 16) == (c.xor or 0), about
        assert fields[17] == _bits(math.nan if c.order is None else c.order), about


def _build(compiler: str, target: Path, *flags: str) -> None:
    command = [compiler, *FLAGS, *flags, str(HERE / "vectors.c"), *map(str, CORE), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.skipif(CC is None, reason="no C compiler: the build without warnings was NOT checked")
def test_it_builds_without_a_warning_and_every_level_gives_the_same_bits(tmp_path: Path, case_file: Path) -> None:
    assert CC is not None
    _build(CC, tmp_path / "vectors", "-O3")
    for level in "012":
        _check(_run(str(tmp_path / "vectors"), str(case_file), level))


@pytest.mark.skipif(CC is None, reason="no C compiler: the extension's warnings were NOT checked")
def test_the_extension_module_builds_without_a_warning(tmp_path: Path) -> None:
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        pytest.skip("no Python.h: the extension's warnings were NOT checked")
    package = ROOM.parent
    others = [package / "collect" / "records" / "_values.c", package / "dump" / "native" / "_journal.c"]
    for source in (SOURCE / "_kernel.c", SOURCE / "shortest.c", SOURCE / "tensor_json.c", *others):
        command = [str(CC), *FLAGS, "-O3", "-fPIC", f"-I{include}", "-c", str(source)]
        done = subprocess.run([*command, "-o", str(tmp_path / source.stem)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(CC is None, reason="no C compiler: the sanitizers did NOT run")
def test_address_and_undefined_behaviour_sanitizers_find_nothing(tmp_path: Path, case_file: Path) -> None:
    assert CC is not None
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([CC, *flags, str(probe), "-o", str(tmp_path / "probe")], capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers: they did NOT run")
    _build(CC, tmp_path / "vectors", "-O1", "-g", *flags)
    for level in "02":
        _check(_run(str(tmp_path / "vectors"), str(case_file), level))


@pytest.mark.skipif(
    not (CROSS and EMULATOR),
    reason="aarch64 was NOT tested: install gcc-aarch64-linux-gnu and qemu-user-static to test it",
)
def test_aarch64_gives_the_same_bits(tmp_path: Path, case_file: Path) -> None:
    assert CROSS is not None
    assert EMULATOR is not None
    _build(CROSS, tmp_path / "vectors", "-O3", "-static")
    for level in "01":  # the CRC by table, and by the CPU's instructions
        _check(_run(EMULATOR, str(tmp_path / "vectors"), str(case_file), level))
