"""Copies of a model that is being collected take none of our hooks along.

`copy.deepcopy(model)` (a moving average of the weights) would record the copy's calls under the names of the
original, and `torch.save(model)` cannot pickle our hooks. Both ask the module for its state: while hooks are on,
the answer leaves ours out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

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
        self._installed = True

    def remove(self) -> None:
        if not self._installed:
            return
        self._installed = False
        if self._original is None:
            del torch.nn.Module.__getstate__
        else:
            torch.nn.Module.__getstate__ = self._original
