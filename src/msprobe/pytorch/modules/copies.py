"""Keeps our hooks out of copies of a model that is being collected.

`copy.deepcopy(model)` (a moving average of the weights) would record the calls of the copy under the names of the
original, and a file of `torch.save(model)` must load without msprobe. Modules can define in many ways how they are
copied (`__getstate__`, `__deepcopy__`, `__reduce__`), but all of them copy the OrderedDicts that hold the hooks. While
our hooks are installed, these dicts are copied and pickled without them. `torch.jit.script(model)` would compile the
hooks: they are removed while it runs.
"""

from __future__ import annotations

import copyreg
import secrets
from collections import OrderedDict
from typing import Any, Callable

from torch.jit import _recursive

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_reducers: dict[Any, Any] = copyreg.dispatch_table
_keys: set[int] = set()  # the keys of the hooks that are installed now
_before: dict[str, Any] = {}  # the originals that we have replaced


class PlainCopies:
    """Installed while hooks under `key` are installed. The key is a random number below 2**62, so no other hook and
    no OrderedDict of the script has it."""

    def __init__(self) -> None:
        self.key = secrets.randbits(62)

    def install(self) -> None:
        if not _keys:
            _before["reducer"], _reducers[OrderedDict] = _reducers.get(OrderedDict), _reduce_without_hooks
            _before["script"], _recursive.create_script_module = _recursive.create_script_module, _script_without_hooks
        _keys.add(self.key)

    def remove(self) -> None:
        if self.key not in _keys:
            return
        _keys.remove(self.key)
        if not _keys:
            _recursive.create_script_module = _before.pop("script")
            reducer = _before.pop("reducer")
            if reducer is None:
                del _reducers[OrderedDict]
            else:
                _reducers[OrderedDict] = reducer


class RootHooks:
    """The two hooks on a model that count its forwards (token_range), until `remove`."""

    def __init__(self, root: Any, begin: Callable[..., None], end: Callable[..., None]) -> None:
        self._root = root
        self._copies = PlainCopies()
        self._copies.install()
        root._forward_pre_hooks[self._copies.key] = begin
        root._forward_hooks[self._copies.key] = end
        root._forward_hooks_always_called[self._copies.key] = True

    def remove(self) -> None:
        for kind in HOOKS:
            getattr(self._root, kind).pop(self._copies.key, None)
        self._copies.remove()


def _reduce_without_hooks(hooks: Any) -> Any:
    """How copy and pickle reduce an OrderedDict."""
    if any(key in hooks for key in _keys):
        hooks = OrderedDict((key, hook) for key, hook in hooks.items() if key not in _keys)
    reducer = _before.get("reducer")
    return hooks.__reduce__() if reducer is None else reducer(hooks)


def _script_without_hooks(model: Any, *args: Any, **kwargs: Any) -> Any:
    saved = []
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(module, kind)
            ours = _keys.intersection(hooks)
            if ours:
                saved.append((hooks, list(hooks.items())))
                for key in ours:
                    del hooks[key]
    try:
        return _before["script"](model, *args, **kwargs)
    finally:
        for hooks, items in saved:  # in their order
            hooks.clear()
            hooks.update(items)
