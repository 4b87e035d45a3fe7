"""Builds the C parts: statistics, stacks, the looks of a task, comparing tensors. Everything else is in pyproject.toml.

Each is optional: without a compiler the installation still succeeds and its Python twin is used.
"""

from setuptools import Extension, setup

STATS = "src/msprobe/stats"
SOURCES = (
    "_kernel",
    "described",
    "remembered",
    "memory",
    "measure",
    "ranges",
    "chunks",
    "layout",
    "tiles",
    "crc32",
    "shortest",
)
HEADERS = (
    "core",
    "described",
    "exchange",
    "internal",
    "kernel",
    "layout",
    "loops",
    "memory",
    "shortest",
    "weak",
    "x86_float32",
)
# No fast-math, and no fused multiply-add that one CPU has and another has not.
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]

setup(
    ext_modules=[
        Extension(
            "msprobe.stats._kernel",
            sources=[f"{STATS}/{name}.c" for name in SOURCES],
            depends=[f"{STATS}/{name}.h" for name in HEADERS],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "msprobe.collect._frames",
            sources=["src/msprobe/collect/_frames.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "msprobe.tasks._scan",
            sources=["src/msprobe/tasks/_scan.c", "src/msprobe/tasks/watched.c"],
            depends=["src/msprobe/tasks/scan.h", f"{STATS}/exchange.h", f"{STATS}/weak.h"],
            extra_compile_args=[*FLAGS, "-fno-trapping-math"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "msprobe.compare._pairs",
            sources=["src/msprobe/compare/_pairs.c"],
            extra_compile_args=["-O3", "-fno-math-errno"],
            optional=True,
        ),
    ]
)
