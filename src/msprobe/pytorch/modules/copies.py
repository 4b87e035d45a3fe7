"""Copies of a model that is being collected take none of our hooks along.

`copy.deepcopy(model)` (a moving average of the weights) would record the copy's calls under the names of the
original, and a file of `torch.save(model)` must load where there is no msprobe. Modules say in many ways what is to be
copied (`__getstate__`, `__deepcopy__`, `__reduce__`), but each ends at the OrderedDicts that hold the hooks: while ours
are on, those are copied and pickled without them. `torch.jit.script(model)` would compile them: they are off the model
while it looks.
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
_keys: set[int] = set()  # of the hooks that are on now
_before: dict[str, Any] = {}  # what stood where ours stands


class PlainCopies:
    """Installed while hooks are on that are all under `key`: one that no other hook has, and no OrderedDict of the
    script's either, because it is drawn from 2**62."""

    def __init__(self) -> None:
        self.key = secrets.randbits(62)

    def install(self) -> None:
        if not _keys:
            _before["reducer"], _reducers[OrderedDict] = _reducers.get(OrderedDict), _without_our_hooks
            _before["script"], _recursive.create_script_module = _recursive.create_script_module, _scripted
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


def _without_our_hooks(hooks: Any) -> Any:
    """How copy and pickle take an OrderedDict apart."""
    if any(key in hooks for key in _keys):
        hooks = OrderedDict((key, hook) for key, hook in hooks.items() if key not in _keys)
    reducer = _before.get("reducer")
    return hooks.__reduce__() if reducer is None else reducer(hooks)


def _scripted(model: Any, *args: Any, **kwargs: Any) -> Any:
    whole = []
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(module, kind)
            ours = _keys.intersection(hooks)
            if ours:
                whole.append((hooks, list(hooks.items())))
                for key in ours:
                    del hooks[key]
    try:
        return _before["script"](model, *args, **kwargs)
    finally:
        for hooks, items in whole:  # in their order
            hooks.clear()
            hooks.update(items)
