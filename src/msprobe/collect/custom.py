"""APIs that the user registers: `register_custom_api(module, "name")`.

The function is replaced where it lives by one that records it while a step is collected and passes the
call straight on otherwise; `restore` puts the original back.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Protocol

from .lifecycle import UsageError


class Records(Protocol):
    """Whatever records API calls while a step is collected."""

    def record_custom(self, api: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...


class CustomApis:
    def __init__(self, describe: Callable[[str, str], Any]) -> None:
        """`describe(prefix, name)` makes the frontend's own description of an API."""
        self._describe = describe
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._records: Optional[Records] = None

    def attach(self, records: Records) -> None:
        self._records = records

    def detach(self) -> None:
        self._records = None

    def register(self, module: Any, name: str, prefix: Optional[str]) -> None:
        original = getattr(module, name, None) if isinstance(name, str) else None
        if not callable(original):
            raise UsageError(f"register_custom_api: {_title(module)} has no function {name!r}.")
        if (id(module), name) in self._originals:
            return
        api = self._describe(prefix or _title(module), name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            records = self._records
            return original(*args, **kwargs) if records is None else records.record_custom(api, original, args, kwargs)

        self._originals[id(module), name] = (module, original)
        setattr(module, name, recorded)

    def restore(self, module: Any, name: str) -> None:
        found = self._originals.pop((id(module), name), None)
        if found is None:
            raise UsageError(f"restore_custom_api: {_title(module)}.{name} was not registered.")
        setattr(module, name, found[1])


def _title(module: Any) -> str:
    return str(getattr(module, "__name__", type(module).__name__))
