"""Builds the C parts: statistics, calls, journal, overflow scans, comparing tensors.

All other settings are in pyproject.toml.

Each part is optional: without a compiler the installation still succeeds, and msprobe uses the Python version.
"""

from setuptools import Extension, setup

STATS = "src/msprobe/stats"
INCLUDE = f"{STATS}/native/include"
SCAN = f"{STATS}/scan_native"
SOURCES = (
    "_kernel",
    "tensor_json",
    "tensor_cache",
    "figures",
    "samples",
    "cache_entry",
    "memory",
    "measure",
    "order",
    "ranges",
    "chunks",
    "layout",
    "tiles",
    "crc32",
    "damage",
    "shortest",
)
HEADERS = (
    "cache_entry",
    "core",
    "damage_loops",
    "exchange",
    "fp_state",
    "internal",
    "kernel",
    "layout",
    "loops",
    "memory",
    "shortest",
    "tensor_json",
    "weak",
    "x86_float32",
)
# No fast-math and no automatic fused multiply-add: results must be the same on every CPU.
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]

setup(
    package_dir={"": "src"},
    py_modules=["msprobe"],  # beside the package: found only if the package has lost its __init__.py
    ext_modules=[
        Extension(
            "msprobe.stats._kernel",
            sources=[f"{STATS}/native/{name}.c" for name in SOURCES],
            depends=[f"{INCLUDE}/{name}.h" for name in HEADERS],
            include_dirs=[INCLUDE],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "msprobe.collect.records._frames",
            sources=["src/msprobe/collect/records/_frames.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "msprobe.collect.records._values",
            sources=["src/msprobe/collect/records/_values.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "msprobe.dump.native._journal",
            sources=["src/msprobe/dump/native/_journal.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "msprobe.stats._scan",
            sources=[f"{SCAN}/_scan.c", f"{SCAN}/watched.c"],
            depends=[f"{SCAN}/scan.h", f"{INCLUDE}/exchange.h", f"{INCLUDE}/weak.h"],
            include_dirs=[INCLUDE],
            extra_compile_args=[*FLAGS, "-fno-trapping-math"],
            libraries=["m"],
            optional=True,
        ),
        Extension(
            "msprobe.compare.measure._pairs",
            sources=["src/msprobe/compare/measure/_pairs.c"],
            extra_compile_args=["-O3", "-fno-math-errno"],
            optional=True,
        ),
    ],
)
