"""Messages to the user while a script runs, on stderr, through the logger `msprobe`.

msprobe adds its own handler only if the script has configured none: the logging setup of the script decides where our
lines go.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

from msprobe.system.interrupts import let_through

_logger = logging.getLogger("msprobe")
_said: set[str] = set()
_NUMBERS = re.compile(r"\d+")


class _CurrentStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current sys.stderr, unless the script has set up logging in the meantime."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            with _without_bars(self.stream):
                super().emit(record)


@contextmanager
def _without_bars(stream: TextIO) -> Iterator[None]:
    """Takes the progress bars of tqdm away while a line is written, if the script has any."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with ExitStack() as away:
        try:
            if bars is not None:
                # Without its lock: a forked process may have it locked for ever.
                away.enter_context(bars.external_write_mode(file=stream, nolock=True))
        except Exception as error:  # a bar that fails is no reason to lose the line
            let_through(error)
        yield


def _ready() -> logging.Logger:
    if not _logger.hasHandlers():
        handler = _CurrentStderr()
        handler.setFormatter(logging.Formatter("[msprobe] %(levelname)s: %(message)s"))
        _logger.addHandler(handler)
    _logger.disabled = False  # a logging.config of the script disables loggers that exist before it
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)  # if the script has set a level for our logger, it stays
    return _logger


def _log(level: int, message: str) -> None:
    try:
        _ready().log(level, message)
    except Exception as error:  # a closed stderr, or a log handler of the script that fails
        let_through(error)


def inform(message: str) -> None:
    """Logs a fact: where the dump is, what it has."""
    _log(logging.INFO, message)


def warn(message: str) -> None:
    """Logs a warning: the result may not be what the user expects."""
    _log(logging.WARNING, message)


def warn_once(message: str) -> None:
    """Like `warn`, but logs the same sentence, with any numbers, only once in this process."""
    key = _without_numbers(message)
    if key not in _said:
        _said.add(key)
        warn(message)


@functools.lru_cache(maxsize=256)  # a hook may log the same sentence at each call
def _without_numbers(message: str) -> str:
    return _NUMBERS.sub("0", message)


def forget() -> None:
    """Forgets what was logged: a new run may log everything again."""
    _said.clear()
