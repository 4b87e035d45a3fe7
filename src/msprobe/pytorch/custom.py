"""APIs that the user registers: `register_custom_api(module, "name")`.

A function that does not reach the mode is replaced where it lives by one that records it while a step
is collected and passes the call straight on otherwise; `restore` puts the original back.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from msprobe.collect.lifecycle import UsageError

from .api_table import Api
from .apis import Apis


class CustomApis:
    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._apis: Optional[Apis] = None

    def attach(self, apis: Apis) -> None:
        self._apis = apis

    def detach(self) -> None:
        self._apis = None

    def register(self, module: Any, name: str, prefix: Optional[str]) -> None:
        original = getattr(module, name, None) if isinstance(name, str) else None
        if not callable(original):
            raise UsageError(f"register_custom_api: {_title(module)} has no function {name!r}.")
        if (id(module), name) in self._originals:
            return
        api = Api(prefix or _title(module), name, untracked=True)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            apis = self._apis
            return original(*args, **kwargs) if apis is None else apis.record_custom(api, original, args, kwargs)

        self._originals[id(module), name] = (module, original)
        setattr(module, name, recorded)

    def restore(self, module: Any, name: str) -> None:
        found = self._originals.pop((id(module), name), None)
        if found is None:
            raise UsageError(f"restore_custom_api: {_title(module)}.{name} was not registered.")
        setattr(module, name, found[1])


def _title(module: Any) -> str:
    return str(getattr(module, "__name__", type(module).__name__))
