"""Which parameters and modules are watched: the patterns of the configuration, matched to names without wrappers."""

from __future__ import annotations

import fnmatch
import re

from msprobe.collect import notices
from msprobe.watch.settings import WatchSettings

_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)(?=\.|$)")


def plain_name(name: str) -> str:
    """The name in the unwrapped model: without `_orig_mod` of torch.compile and wrappers of FSDP or checkpointing."""
    return _WRAPPERS.sub("", name).strip(".")


class Filter:
    """The include and exclude patterns; names of modules match like those of parameters."""

    def __init__(self, settings: WatchSettings) -> None:
        self._include, self._exclude = settings.include, settings.exclude
        self._everything = self._include == ("*",) and not self._exclude
        self.seen = 0
        self.chosen = 0

    def wants(self, name: str) -> bool:
        self.seen += 1
        wanted = self._everything or (_matches(name, self._include) and not _matches(name, self._exclude))
        self.chosen += wanted
        return wanted

    def report(self) -> None:
        """Warns if no name matched."""
        if self.seen and not self.chosen:
            given = f"include {list(self._include)}, exclude {list(self._exclude)}"
            notices.warn(f"the monitor watches no parameter: none of {self.seen} names matches {given}.")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
