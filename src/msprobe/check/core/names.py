"""The name of an API's record, taken apart: `Functional.conv2d.0.forward`."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

_NAME = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(\d{1,18})\.(forward|backward)\Z", re.ASCII)


class Name(NamedTuple):
    prefix: str
    api: str
    number: int
    direction: str

    @property
    def title(self) -> str:
        """`Functional.conv2d`: what a callable is looked up by."""
        return f"{self.prefix}.{self.api}"

    @property
    def call(self) -> str:
        """`Functional.conv2d.0`: what the results name."""
        return f"{self.title}.{self.number}"


def parse(text: str) -> Optional[Name]:
    """None for what is no API's record: modules, parameter gradients, anything odd."""
    found = _NAME.match(text)
    return Name(found[1], found[2], int(found[3]), found[4]) if found else None
