"""APIs that the user registers: `register_custom_api(module, "name")`.

msprobe replaces the function in its module. The replacement records the call while a step is collected and otherwise
only passes it on; `restore` puts the original back. In a class, the replacement binds like the original: subclasses,
instances and the class itself get the same call as before.
"""

from __future__ import annotations

import copy
import functools
import types
from typing import Any, Callable, NamedTuple, Optional, Protocol

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import UsageError

_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_CLASS_METHODS = (classmethod, types.ClassMethodDescriptorType)
_MISSING = object()


class Records(Protocol):
    """An object that records API calls while a step is collected."""

    def record_custom(self, api: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...


class CustomApis:
    """The registered APIs of a framework in this process. They stay registered if another debugger is created."""

    def __init__(self, describe: Callable[[str, str], Any]) -> None:
        """`describe(prefix, name)` makes the frontend's own description of an API."""
        self._describe = describe
        self._registered: dict[tuple[int, str], _Registered] = {}
        self.records: Optional[Records] = None

    def attach(self, records: Records) -> None:
        self.records = records

    def detach(self) -> None:
        self.records = None

    def register(self, module: Any, name: str, prefix: Optional[str]) -> None:
        original = getattr(module, name, None) if isinstance(name, str) else None
        title = f"{_title(module)}.{name}"
        if not callable(original):
            raise UsageError(f"register_custom_api: {_title(module)} has no function {name!r}.")
        if isinstance(original, type):
            raise UsageError(
                f"register_custom_api: {title} is a class and cannot be replaced, because isinstance needs it. "
                f'Register one of its methods, for example register_custom_api({title}, "forward").'
            )
        if self.has(module, name):
            return
        call = _Call(self, self._describe(prefix or _title(module), name))
        before = _attributes(module).get(name, _MISSING)
        ours = _in_class(module, name, original, call) if isinstance(module, type) else _outside(original, call)
        try:
            setattr(module, name, ours)
        except (AttributeError, TypeError) as error:
            raise UsageError(
                f"register_custom_api: {title} cannot be replaced ({error}): call it through a function of your own "
                "and register that one."
            ) from None
        if before is _MISSING and name not in _attributes(module):
            before = original  # it is in a slot
        self._registered[id(module), name] = _Registered(module, before, ours, call)

    def has(self, module: Any, name: str) -> bool:
        """Whether this API is registered: it records its calls itself, with its own prefix."""
        return (id(module), name) in self._registered

    def restore(self, module: Any, name: str) -> None:
        found = self._registered.pop((id(module), name), None)
        if found is None:
            raise UsageError(f"restore_custom_api: {_title(module)}.{name} was not registered.")
        found.call.on = False
        if _attributes(module).get(name, getattr(module, name, None)) is not found.ours:
            title = f"{_title(module)}.{name}"
            notices.warn(f"restore_custom_api: other code has replaced {title} since; it stays as it is.")
        elif found.before is _MISSING:
            delattr(module, name)
        else:
            setattr(module, name, found.before)


class _Call:
    """Runs a registered API; records it while a step is collected."""

    def __init__(self, apis: CustomApis, api: Any) -> None:
        self.apis = apis
        self._api = api
        self.on = True

    def __call__(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        records = self.apis.records
        if records is None or not self.on:
            return func(*args, **kwargs)
        return records.record_custom(self._api, func, args, kwargs)


class _Registered(NamedTuple):
    module: Any  # held, because its id is the key
    before: Any
    ours: Any
    call: _Call


class _Recorded:
    """Replaces a callable that is more than a function: it has the attributes of the original, and a copy of it is
    unrecorded."""

    def __init__(self, original: Callable[..., Any], call: _Call) -> None:
        functools.update_wrapper(self, original, updated=())
        self._msprobe_call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._msprobe_call(self.__wrapped__, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["__wrapped__"], name)

    def __reduce__(self) -> Any:
        return copy.copy, (self.__dict__["__wrapped__"],)


class _Descriptor:
    """Replaces a callable in a class that has its own way of binding, such as functools.partialmethod."""

    def __init__(self, original: Any, call: _Call) -> None:
        self._original = original
        self._call = call

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return _Recorded(self._original.__get__(instance, owner), self._call)


def _function(original: Callable[..., Any], call: _Call) -> Any:
    apis = call.apis

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if apis.records is None else call(original, args, kwargs)

    if isinstance(original, types.FunctionType):
        recorded.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]  # torch.jit compiles this
    return recorded


def _outside(original: Callable[..., Any], call: _Call) -> Any:
    return _function(original, call) if isinstance(original, types.FunctionType) else _Recorded(original, call)


def _in_class(owner: type, name: str, original: Any, call: _Call) -> Any:
    """The replacement for a callable in a class. `original` is the attribute of the class."""
    raw = next((vars(one)[name] for one in owner.__mro__ if name in vars(one)), _MISSING)
    if isinstance(raw, _METHODS):
        return _function(raw, call)
    if isinstance(raw, _CLASS_METHODS):
        method: Any = raw

        @functools.wraps(getattr(method, "__func__", original))
        def recorded(cls: type, *args: Any, **kwargs: Any) -> Any:
            return call(method.__get__(None, cls), args, kwargs)

        return classmethod(recorded)
    if raw is _MISSING or isinstance(raw, staticmethod) or not hasattr(type(raw), "__get__"):
        return staticmethod(_outside(original, call))
    return _Descriptor(raw, call)


def _attributes(module: Any) -> Any:
    return getattr(module, "__dict__", {})


def _title(module: Any) -> str:
    return str(getattr(module, "__name__", type(module).__name__))
