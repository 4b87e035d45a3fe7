"""Where API calls are intercepted: every place that holds a listed function, while a step is collected.

The functions of mint and ops and the methods of Tensor are replaced in the namespaces that hold them; so
are the names that other modules have bound them to (`from mindspore.ops import relu`), the functions that
Cells of the model keep as attributes (`self.act = ops.gelu`), and `__call__` of the classes of the
Primitives that these Cells own. `take_out` puts back exactly what was there.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Callable, Optional

from mindspore import ops

from .api_table import Listed
from .apis import Api, Apis

# Modules of MindSpore that use APIs as a user would; in all others they are the inside of an API.
_USERS = ("mindspore.nn.layer", "mindspore.nn.loss", "mindspore.mint.nn.layer")
_NOT_USERS = ("mindspore", "msprobe", "numpy", "torch", "sys", "builtins")
# Primitives that compute nothing.
_METADATA = frozenset({"Shape", "TensorShape", "DType", "Rank", "Size"})
_ABSENT = object()


class Sites:
    """One a process. The replacements are made once; putting them in and out is setting attributes."""

    def __init__(self, table: Sequence[Listed]) -> None:
        self._apis: Optional[Apis] = None
        self._fixed: list[tuple[Any, str, Any, Any]] = []
        self._by_function: dict[int, Any] = {}
        self._searched: dict[str, tuple[int, int]] = {}
        self._bound: dict[str, list[tuple[ModuleType, str, Any, Any]]] = {}
        self._in: list[tuple[Any, str, Any]] = []
        self._primitives: dict[int, Api] = {}
        for listed in table:
            replacement = self._replacement(listed.api, listed.function)
            before = vars(listed.holder).get(listed.name, _ABSENT)
            self._fixed.append((listed.holder, listed.name, replacement, before))
            if isinstance(listed.holder, ModuleType):
                self._by_function.setdefault(id(listed.function), replacement)

    @property
    def installed(self) -> bool:
        return bool(self._in)

    def put_in(self, apis: Apis, cells: Sequence[Any]) -> None:
        """From here on calls go through `apis`; `cells` are those whose attributes and Primitives count."""
        self._apis = apis
        for holder, name, replacement, before in self._fixed:
            self._set(holder, name, replacement, before)
        for holder, name, replacement, before in self._elsewhere():
            self._set(holder, name, replacement, before)
        self._put_into(cells)

    def take_out(self) -> None:
        for holder, name, before in reversed(self._in):
            if before is _ABSENT:
                delattr(holder, name)
            elif isinstance(holder, dict):
                holder[name] = before
            else:
                setattr(holder, name, before)
        self._in.clear()
        self._primitives = {}
        self._apis = None

    def _set(self, holder: Any, name: str, replacement: Any, before: Any) -> None:
        if isinstance(holder, dict):
            holder[name] = replacement
        else:
            setattr(holder, name, replacement)
        self._in.append((holder, name, before))

    def _replacement(self, api: Api, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            apis = self._apis
            return function(*args, **kwargs) if apis is None else apis.call(api, function, args, kwargs)

        return recorded

    # Names that other modules have bound to a listed function.

    def _elsewhere(self) -> Iterator[tuple[ModuleType, str, Any, Any]]:
        for title, module in list(sys.modules.items()):
            root = title.partition(".")[0]
            if (root in _NOT_USERS and not title.startswith(_USERS)) or not isinstance(module, ModuleType):
                continue
            mark = id(module), len(vars(module))
            if self._searched.get(title) != mark:  # a module that gained no name since is not read again
                self._searched[title] = mark
                self._bound[title] = self._bindings(module)
            for holder, name, replacement, function in self._bound[title]:
                if vars(holder).get(name) is function:
                    yield holder, name, replacement, function

    def _bindings(self, module: ModuleType) -> list[tuple[ModuleType, str, Any, Any]]:
        found = []
        for name, value in list(vars(module).items()):
            replacement = self._by_function.get(id(value))
            if replacement is not None:
                found.append((module, name, replacement, value))
        return found

    # What the Cells of the model hold.

    def _put_into(self, cells: Sequence[Any]) -> None:
        classes: dict[type, None] = {}
        for cell in cells:
            for name, primitive in cell._primitives.items():
                kind = type(primitive)
                if primitive is not None and kind.__name__ not in _METADATA:
                    title = f"Primitive.{name}.{kind.__name__}"
                    self._primitives.setdefault(id(primitive), Api(title, kind.__name__))
                    classes[kind] = None
            attributes = vars(cell)
            for name, value in list(attributes.items()):
                replacement = self._by_function.get(id(value))
                if replacement is not None:
                    self._set(attributes, name, replacement, value)
        for kind in classes:
            self._set(kind, "__call__", self._primitive_call(kind), vars(kind).get("__call__", _ABSENT))

    def _primitive_call(self, kind: type) -> Any:
        original: Any = kind.__call__  # type: ignore[operator]
        known = self._primitives

        @functools.wraps(original)
        def recorded(primitive: ops.Primitive, *args: Any, **kwargs: Any) -> Any:
            api = known.get(id(primitive))
            apis = self._apis
            if api is None or apis is None:
                return original(primitive, *args, **kwargs)
            return apis.call(api, functools.partial(original, primitive), args, kwargs)

        return recorded
