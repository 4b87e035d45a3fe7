"""Python runs this file when it starts, in the processes of a command of `msprobe check` (see baseline/running.py).

It collects in this process, and then runs the sitecustomize that it hides, if there is one.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 pathlib would be imported before the script
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]  # noqa: PTH100
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ModuleNotFoundError:
    pass
if _this is not None:
    sys.modules.setdefault("sitecustomize", _this)
if os.environ.get("MSPROBE_COLLECT"):
    try:
        from msprobe.cli.run import collect_here
    except ModuleNotFoundError:
        print(f"msprobe is not installed for {sys.executable}: nothing is collected there.", file=sys.stderr)
    else:
        collect_here(os.environ["MSPROBE_COLLECT"])
