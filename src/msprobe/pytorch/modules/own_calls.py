"""Modules whose class has its own `__call__`: no hook runs for them, unless it calls the `__call__` of torch.

vLLM's support_torch_compile adds such a `__call__`. msprobe logs what it does not see there.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import nn

from msprobe.collect import notices

_CALL = nn.Module.__call__
_CONTAINERS = (nn.ParameterDict, nn.ParameterList)
"""They hold parameters, and calling them is an error."""


class OwnCalls:
    """The modules of one step that may call no hooks."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Any]] = []

    def add(self, name: str, module: Any) -> None:
        if type(module).__call__ is not _CALL and not isinstance(module, _CONTAINERS):
            self._found.append((name, module))

    def report(self, name_of: Callable[[int], Optional[str]], was_called: Callable[[str], bool]) -> None:
        """Logs once which of the modules had no call, and whether the modules inside them had one."""
        apart: list[str] = []
        silent: list[str] = []
        for name, module in self._found:
            if was_called(name):
                continue
            inside = filter(None, (name_of(id(one)) for one in module.modules() if one is not module))
            (apart if any(map(was_called, inside)) else silent).append(name)
        self._found.clear()
        if apart:
            notices.warn_once(
                f"{_listed(apart)} not recorded: the class has a __call__ of its own, which runs no hooks (vLLM's "
                "support_torch_compile adds one). The modules inside are recorded."
            )
        if silent:
            notices.warn_once(
                f"{_listed(silent)} not recorded, with all modules inside: the class has a __call__ of its own, and "
                "no hook ran. It did not run in this step, or it runs compiled: with vLLM, set enforce_eager=True."
            )


def _listed(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are"
