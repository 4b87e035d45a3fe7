"""Describes a function that the user registers: it may write tensors without a change of version counters."""

from __future__ import annotations

from msprobe.collect import custom
from msprobe.frameworks.pytorch.api_table import Api


class CustomApis(custom.CustomApis):
    def __init__(self) -> None:
        super().__init__(lambda prefix, name: Api(prefix, name, untracked=True))


CUSTOM_APIS = CustomApis()
