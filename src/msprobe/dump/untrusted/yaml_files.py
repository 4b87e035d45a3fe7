"""Reads YAML of the user: plain data without aliases. Nine lines of aliases can expand to a billion items.

Where PyYAML has libyaml, that reads the text. The nodes are made in Python, which limits how deep they are nested.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader: Any = yaml.SafeLoader
if yaml.__with_libyaml__:

    class _FastLoader(yaml.composer.Composer, yaml.CSafeLoader):
        def __init__(self, stream: Any) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

    _Loader = _FastLoader


class _PlainLoader(_Loader):  # type: ignore[misc]
    """The safe loader, without aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not accepted", mark)
        return super().compose_node(parent, index)


def load_all(data: bytes) -> list[Any]:
    """Every document of a file. Raises yaml.YAMLError, also for text that is nested too deeply."""
    try:
        return list(yaml.load_all(data, Loader=_PlainLoader))
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # an invalid date, or a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None
