"""The cost of the statistics kernel, as ratios of CPU times on this machine.

Each row measures two things alternately and takes the fastest run of each, so that other load affects both in the same
way. All measurements use one thread. Run: python benchmarks/kernel.py
"""

from __future__ import annotations

import platform
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from msprobe import stats
from msprobe.stats import CRC, STATS, dtypes

LARGE, SMALL = 10_000_000, 1_000


@dataclass(frozen=True)
class Row:
    """`ratio` compares msprobe with the reference. It should be large in `faster` rows and small in the others."""

    what: str
    ours: float
    theirs: float
    wanted: str
    faster: bool

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours if self.faster else self.ours / self.theirs


def race(ours: Callable[[], object], theirs: Callable[[], object], calls: int, rounds: int) -> tuple[float, float]:
    """The fastest CPU time of one call of each, measured alternately."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, run in enumerate((ours, theirs)):
            start = time.process_time()
            for _ in range(calls):
                run()
            best[index] = min(best[index], (time.process_time() - start) / calls)
    return best[0], best[1]


def against_copy(name: str, want: int) -> Row:
    """A large tensor compared with a copy of it."""
    row = dtypes.BY_NAME[name]
    array = np.random.default_rng(0).standard_normal(LARGE).astype(row.numpy_dtype)
    target = array.copy()
    bits = array.view(f"u{row.itemsize}")
    out = target.view(f"u{row.itemsize}")
    where = array.__array_interface__["data"][0]
    times = race(lambda: stats.measure(where, row.code, (LARGE,), (1,), want, 1), lambda: np.copyto(out, bits), 2, 15)
    wanted = "at most 1.6" if name == "float32" and want == STATS else ""
    digest = " and CRC" if want & CRC else ""
    return Row(f"{name}, 1e7 elements{digest}: in units of a copy", *times, wanted, faster=False)


def against_reductions(name: str) -> Row:
    """A small tensor, as the frontend measures it, compared with four reductions."""
    tensor = torch.randn(SMALL).to(getattr(torch, name))
    code = dtypes.BY_NAME[name].code

    def reductions() -> None:
        tensor.max().item(), tensor.min().item(), tensor.mean().item(), tensor.norm().item()

    def ours() -> None:
        stats.measure(tensor.data_ptr(), code, tensor.shape, tensor.stride(), STATS, 1)

    return Row(
        f"{name}, 1e3 elements: four torch reductions, in units of msprobe's time",
        *race(ours, reductions, 2000, 9),
        "at least 7" if name == "float32" else "",
        faster=True,
    )


def against_zlib(size: int) -> Row:
    data = np.random.default_rng(0).bytes(size)
    calls = max(1, 20_000_000 // size)
    times = race(lambda: stats.crc32(data), lambda: zlib.crc32(data), calls, 9)
    wanted = "at least 4" if size > 1_000_000 else ""
    return Row(f"CRC-32 of {size} bytes: zlib, in units of msprobe's time", *times, wanted, faster=True)


def text() -> Row:
    array = np.random.default_rng(0).standard_normal(1).astype(np.float32)
    where, code = array.__array_interface__["data"][0], dtypes.BY_NAME["float32"].code
    times = race(
        lambda: stats.render(where, code, (1,), (1,), STATS),
        lambda: [repr(0.1234567891234567) for _ in "1234"],
        5000,
        9,
    )
    return Row("JSON members of a scalar: in units of four reprs", *times, "", faster=False)


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, backend {stats.BACKEND}"
    )
    rows = [against_copy(name, STATS) for name in ("float32", "float16", "bfloat16", "float64", "int64", "bool")]
    rows += [against_copy("float32", STATS | CRC)]
    rows += [against_reductions(name) for name in ("float32", "float16", "bfloat16")]
    rows += [against_zlib(size) for size in (100, 4_000, 40_000_000)]
    rows += [text()]
    print(f"{'':76} {'msprobe':>10} {'reference':>10} {'ratio':>7}  goal")
    for row in rows:
        print(f"{row.what:76} {row.ours * 1e6:8.2f}us {row.theirs * 1e6:8.2f}us {row.ratio:7.2f}  {row.wanted}")


if __name__ == "__main__":
    main()
