"""msprobe: find where a moved model's numbers started to differ.

Importing this package imports neither PyTorch nor MindSpore: use `msprobe.pytorch` or
`msprobe.mindspore` for that.
"""

import os

__version__ = "0.1.0"

_BESIDE = os.path.join(os.path.dirname(__file__), "msprobe.py")  # noqa: PTH118, PTH120 importing pathlib takes longer
if os.path.exists(_BESIDE):  # noqa: PTH110 a file of mindstudio-probe
    import warnings

    from msprobe.system.neighbour import BESIDE

    warnings.warn(BESIDE, stacklevel=2)


def __getattr__(name: str) -> object:
    """`msprobe.view(…)` of a notebook, imported when it is first used."""
    if name != "view":
        raise AttributeError(f"module 'msprobe' has no attribute {name!r}")
    import importlib

    return importlib.import_module("msprobe.view")
