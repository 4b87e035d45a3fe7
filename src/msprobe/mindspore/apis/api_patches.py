"""Intercepts API calls: replaces every listed function, in every place that has it, while a step is collected.

The functions of mint and ops and the methods of Tensor are replaced in their namespaces. So are the names that other
modules have bound to them (`from mindspore.ops import relu`), the functions that Cells of the model have as attributes
(`self.act = ops.gelu`), and `__call__` of the classes of the Primitives of these Cells. `take_out` restores the
originals exactly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Callable, Optional

from mindspore import ops

from msprobe.collect.custom import CustomApis
from msprobe.collect.records.values import Values
from msprobe.frameworks.mindspore.api_table import Api, ListedFunction
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.tensors.tensor_text import TensorTexts

# Modules of MindSpore that use APIs like a user; in all others they are the inside of an API.
_USERS = ("mindspore.nn.layer", "mindspore.nn.loss", "mindspore.mint.nn.layer")
_NOT_USERS = ("mindspore", "msprobe", "numpy", "torch", "sys", "builtins")
# Primitives that compute nothing.
_METADATA = frozenset({"Shape", "TensorShape", "DType", "Rank", "Size"})
_ABSENT = object()
# A namespace (the dict of a module or a Cell) or a class, a name in it, its value while collecting, its value before.
Site = tuple[Any, str, Any, Any]


class _User:
    """A module that may have bound listed functions to its own names. It is read again only if it has grown."""

    def __init__(self, module: ModuleType) -> None:
        self.names = vars(module)
        self.length = -1
        self.sites: list[Site] = []


class ApiPatches:
    """One per process. The replacements are made once; putting them in and out only sets attributes."""

    def __init__(self, table: Sequence[ListedFunction]) -> None:
        self._apis: Optional[Apis] = None
        self._listed: list[tuple[ListedFunction, Any]] = []
        self._by_function: dict[int, Any] = {}
        self._users: list[_User] = []
        self._modules = 0
        self._names: list[Site] = []
        self._classes: list[Site] = []
        self._primitives: dict[int, Api] = {}
        for listed in table:
            replacement = self._replacement(listed.api, listed.function)
            self._listed.append((listed, replacement))
            if isinstance(listed.holder, ModuleType):
                self._by_function.setdefault(id(listed.function), replacement)

    def put_in(self, apis: Apis, cells: Sequence[Any], custom: CustomApis) -> None:
        """Sends calls through `apis` from now on, also those of the attributes and Primitives of `cells`. What the
        script has registered is left to `custom`."""
        if self._apis is not None:  # an error has kept them in: a replacement of a replacement would never come out
            self.take_out()
        self._apis = apis
        for listed, replacement in self._listed:
            if not custom.has(listed.holder, listed.name):
                self._add(listed, replacement)
        self._names.extend(self._bound_names())
        for cell in cells:
            self._names.extend(filter(None, map(self._site(vars(cell)), list(vars(cell).items()))))
        self._classes.extend(self._of_primitives(cells))
        self.resume()

    def take_out(self) -> None:
        self.suspend()
        self._names.clear()
        self._classes.clear()
        self._primitives = {}
        self._apis = None

    def resume(self) -> None:
        for names, name, replacement, before in self._names:
            if names.get(name) is before:
                names[name] = replacement
        for kind, name, replacement, _ in self._classes:
            setattr(kind, name, replacement)

    def suspend(self) -> None:
        """Restores everything until `resume`, except what other code has replaced since."""
        failed: list[Site] = []
        for names, name, replacement, before in reversed(self._names):
            if names.get(name) is replacement:
                names[name] = before
        for site in reversed(self._classes):
            try:
                _restore(*site)
            except Exception:  # all others are restored first
                failed.append(site)
        if failed:
            raise RuntimeError(f"{failed[0][0].__name__}.{failed[0][1]} cannot be restored")

    def _add(self, listed: ListedFunction, replacement: Any) -> None:
        """Adds one listed function. Other code may have replaced it since the list was read."""
        holder, name, function, api = listed
        if getattr(holder, name) is not function:
            function = getattr(holder, name)
            replacement = self._replacement(api, function)
        if isinstance(holder, ModuleType):
            self._names.append((vars(holder), name, replacement, function))
        else:
            self._classes.append((holder, name, replacement, vars(holder).get(name, _ABSENT)))

    def _replacement(self, api: Api, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            apis = self._apis
            return function(*args, **kwargs) if apis is None else apis.call(api, function, args, kwargs)

        return recorded

    # Names that other modules have bound to a listed function.

    def _bound_names(self) -> Iterator[Site]:
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._users = [_User(module) for title, module in list(sys.modules.items()) if _is_user(title, module)]
        for user in self._users:
            if len(user.names) != user.length:
                user.length = len(user.names)
                user.sites = [site for site in map(self._site(user.names), list(user.names.items())) if site]
            for site in user.sites:
                if user.names.get(site[1]) is site[3]:
                    yield site

    def _site(self, holder: dict[str, Any]) -> Callable[[tuple[str, Any]], Optional[Site]]:
        known = self._by_function

        def of(item: tuple[str, Any]) -> Optional[Site]:
            replacement = known.get(id(item[1]))
            return None if replacement is None else (holder, item[0], replacement, item[1])

        return of

    def _of_primitives(self, cells: Sequence[Any]) -> Iterator[Site]:
        classes: dict[type, None] = {}
        for cell in cells:
            for name, primitive in cell._primitives.items():
                kind = type(primitive)
                if primitive is not None and kind.__name__ not in _METADATA:
                    title = f"Primitive.{name}.{kind.__name__}"
                    if id(primitive) not in self._primitives:
                        self._primitives[id(primitive)] = Api(title, kind.__name__, members=_attributes(primitive))
                    classes[kind] = None
        for kind in classes:
            yield kind, "__call__", self._primitive_call(kind), vars(kind).get("__call__", _ABSENT)

    def _primitive_call(self, kind: type) -> Any:
        original: Any = kind.__call__
        known = self._primitives

        @functools.wraps(original)
        def recorded(primitive: ops.Primitive, *args: Any, **kwargs: Any) -> Any:
            api = known.get(id(primitive))
            apis = self._apis
            if api is None or apis is None:
                return original(primitive, *args, **kwargs)
            return apis.call(api, functools.partial(original, primitive), args, kwargs)

        return recorded


def _restore(kind: Any, name: str, replacement: Any, before: Any) -> None:
    if vars(kind).get(name) is replacement:
        if before is _ABSENT:
            delattr(kind, name)
        else:
            setattr(kind, name, before)


def _attributes(primitive: Any) -> str:
    """The attributes that create the Primitive again: a stride is not an argument of its call."""
    given = getattr(primitive, "init_attrs", None)
    plain = {str(key): value for key, value in given.items() if key != "name"} if isinstance(given, dict) else {}
    return f'"attributes": {Values(TensorTexts(0, None)).value(plain, "")}'


def _is_user(title: str, module: Any) -> bool:
    root = title.partition(".")[0]
    return isinstance(module, ModuleType) and (root not in _NOT_USERS or title.startswith(_USERS))
