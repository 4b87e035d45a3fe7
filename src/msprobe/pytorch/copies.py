"""Copies of a model that is being collected take none of our hooks along.

`copy.deepcopy(model)` (a moving average of the weights) would record the copy's calls under the names of the
original, and `torch.save(model)` cannot pickle our hooks. Both ask the module for its state: while hooks are on,
the answer leaves ours out. `torch.jit.script(model)` would compile them: they are off the model while it looks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch.jit import _recursive

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class PlainCopies:
    """Installed while hooks are on; all of ours are under one key."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._installed = False
        self._original: Any = None
        self._create_script: Any = None

    def install(self) -> None:
        original = self._original = vars(torch.nn.Module).get("__getstate__")  # older versions of torch have none

        def state_without_our_hooks(module: Any) -> dict[str, Any]:
            state = dict(vars(module) if original is None else original(module))
            for kind in HOOKS:
                hooks = state.get(kind)
                if hooks and self._key in hooks:
                    state[kind] = OrderedDict((key, hook) for key, hook in hooks.items() if key != self._key)
            return state

        torch.nn.Module.__getstate__ = state_without_our_hooks
        self._create_script = _recursive.create_script_module
        _recursive.create_script_module = self._scripted_without_our_hooks
        self._installed = True

    def remove(self) -> None:
        if not self._installed:
            return
        self._installed = False
        _recursive.create_script_module = self._create_script
        if self._original is None:
            del torch.nn.Module.__getstate__
        else:
            torch.nn.Module.__getstate__ = self._original

    def _scripted_without_our_hooks(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        whole = []
        for module in model.modules():
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                hooks = getattr(module, kind)
                if self._key in hooks:
                    whole.append((hooks, list(hooks.items())))
                    del hooks[self._key]
        try:
            return self._create_script(model, *args, **kwargs)
        finally:
            for hooks, items in whole:  # in their order
                hooks.clear()
                hooks.update(items)
