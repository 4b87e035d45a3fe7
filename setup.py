"""Builds the statistics kernel. Everything else is in pyproject.toml.

The extension is optional: without a compiler the installation still succeeds and `msprobe.stats`
falls back to its Python twin.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "msprobe.stats._kernel",
            sources=["src/msprobe/stats/_kernel.c"],
            extra_compile_args=["-O3", "-fno-math-errno"],
            optional=True,
        )
    ]
)
