"""Attributes for programs that embed a debugger: `debugger.config`, `debugger.service`.

SGLang, vLLM-Ascend and adapters of verl are written for mindstudio-probe, whose debugger has these attributes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import Settings


class EmbeddedRun(Protocol):
    """The part of a run that such programs change."""

    settings: Settings

    def use_dump_path(self, dump_path: Path) -> None: ...

    def finish_step(self) -> None: ...

    @property
    def wants_more(self) -> bool: ...


class DebuggerConfig:
    """`debugger.config`: the settings. Only dump_path can be set; it applies from the next start() on."""

    _run: EmbeddedRun

    def __init__(self, run: EmbeddedRun) -> None:
        object.__setattr__(self, "_run", run)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look for these
            raise AttributeError(name)
        value = getattr(self._run.settings, name)
        return str(value) if isinstance(value, Path) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "dump_path":
            raise UsageError(f"debugger.config.{name} cannot be set: only dump_path can. Create another debugger.")
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise UsageError(f"debugger.config.dump_path takes a path, not {value!r}.")
        self._run.use_dump_path(Path(value).expanduser().absolute())


class Service:
    """`debugger.service`: the same settings, and a method that ends a part of a step."""

    def __init__(self, run: EmbeddedRun) -> None:
        self._run = run
        self.config = DebuggerConfig(run)

    @property
    def should_stop_service(self) -> bool:
        """Whether all wanted steps are over. Adapters stop calling the debugger then."""
        return not self._run.wants_more

    def _reset_status(self) -> None:
        """Adapters call this between two parts of one step that go to two directories."""
        self._run.finish_step()


_ELSEWHERE = {
    "module_dump": "call start(model=module) at level L0 or mix",
    "module_dump_end": "call stop()",
    "monitor": "use Monitor",
}


def explain_method(name: str) -> str:
    """The message for an attribute that the debugger does not have."""
    remedy = _ELSEWHERE.get(name)
    known = f"the debugger of msprobe has no {name}(): {remedy}." if remedy else ""
    return known or f"PrecisionDebugger has no attribute {name!r}"


_NAMES = {
    "SingleSave": 'PrecisionDebugger(level="debug") and debugger.save(variable, name)',
    "SingleComparator": "`msprobe compare TARGET GOLDEN`, which also compares what debugger.save() wrote",
    "GradientMonitor": "Monitor",
    "parse": "`msprobe show DIR` and `msprobe compare`",
    "compare": "msprobe.compare.compare(target, golden), or `msprobe compare`",
    "compare_distributed": "msprobe.compare.compare(target, golden): it compares all ranks",
}


def explain_name(module: str, name: str) -> Exception:
    """The error for a name that a module of msprobe does not have. The `__getattr__` of the module calls this.

    `from … import` shows only an ImportError. All others, also `hasattr`, expect an AttributeError.
    """
    remedy = _NAMES.get(name)
    if remedy is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module} has no {name}, unlike mindstudio-probe: use {remedy}."
    asked_by = sys._getframe(2).f_code.co_name
    return ImportError(message, name=module) if asked_by == "_handle_fromlist" else AttributeError(message)
