"""`acl_config` (level L2): turns on Ascend's own kernel dump around one API, if torch_npu is installed.

Kernels of the device are below ATen operators; Ascend writes them itself, as its acl_config.json says. This follows the
documented interface of torch_npu (init_dump, set_dump, finalize_dump) and has not run on an Ascend device.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Optional

from msprobe.collect import notices
from msprobe.dump.names import api_stem


class AscendDump:
    """Ascend's dump around the calls of the API in `scope` or `list`; around no call without a name."""

    def __init__(self, config: Optional[Path], names: tuple[str, ...]) -> None:
        self._config = config
        self._stems = frozenset(api_stem(name) for name in names)
        self._npu: Any = None
        if config is None:
            return
        if importlib.util.find_spec("torch_npu") is None:
            notices.warn_once(
                "acl_config needs torch_npu, which is not installed: level L2 records ATen operators, on any device."
            )
        else:
            self._npu = importlib.import_module("torch_npu").npu
            notices.inform(
                "level L2: Ascend's kernel dump is on during the named API; ATen operators are recorded too."
            )

    def around(self, name: str) -> AbstractContextManager[None]:
        if self._npu is None or api_stem(name) not in self._stems:
            return nullcontext()
        return self._on()

    @contextmanager
    def _on(self) -> Any:
        self._npu.init_dump()
        self._npu.set_dump(str(self._config))
        try:
            yield
        finally:
            self._npu.synchronize()
            self._npu.finalize_dump()
