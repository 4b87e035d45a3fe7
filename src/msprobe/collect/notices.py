"""What msprobe tells the user while a script runs: each thing once, on stderr, through the `msprobe` logger.

A handler of our own is added only where the script has configured none, so that a script's logging
set-up decides where our lines go.
"""

from __future__ import annotations

import logging
import re
import sys

from msprobe.system.interrupts import let_through

_logger = logging.getLogger("msprobe")
_said: set[str] = set()
_NUMBERS = re.compile(r"\d+")


class _CurrentStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stderr is now, unless the script has set up logging meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def _ready() -> logging.Logger:
    if not _logger.hasHandlers():
        handler = _CurrentStderr()
        handler.setFormatter(logging.Formatter("[msprobe] %(levelname)s: %(message)s"))
        _logger.addHandler(handler)
    _logger.disabled = False  # a logging.config of the script disables loggers that are there before it
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)  # a script's own level for our logger stays
    return _logger


def _tell(level: int, message: str) -> None:
    try:
        _ready().log(level, message)
    except Exception as error:  # a closed stderr, a log handler of the script's that fails
        let_through(error)


def inform(message: str) -> None:
    """A fact the user asked for by using the tool: where the dump is, what it holds."""
    _tell(logging.INFO, message)


def warn(message: str) -> None:
    """Something that makes the result other than the user may think."""
    _tell(logging.WARNING, message)


def warn_once(message: str) -> None:
    """`warn`, but the same sentence, whatever its numbers, only once in this process."""
    key = _NUMBERS.sub("0", message)
    if key not in _said:
        _said.add(key)
        warn(message)


def forget() -> None:
    """A new run may say everything again."""
    _said.clear()
