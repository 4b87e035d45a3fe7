"""Replaces functions of torch while msprobe collects."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch

from msprobe.pytorch.compiled.switch import never_compile

_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_Note = Callable[..., None]


class Replacements:
    """Functions that replace those of torch, in places where torch looks a function up by name at every call.
    `remove` restores the originals."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._put)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a function: `make` gets the original and returns the replacement. Does nothing if this torch does
        not have the function."""
        original = vars(owner).get(name)
        if original is None:
            return
        ours = functools.wraps(original)(make(original))
        setattr(owner, name, ours)
        self._put.append((owner, name, ours, original))

    def put_around(self, owner: Any, name: str, before: Optional[_Note], after: Optional[_Note] = None) -> None:
        """Calls `before` and `after` with the arguments of each call. Compiled code may run the function between two
        graphs: dynamo is off for these calls, otherwise it would compile them."""

        def make(original: Any) -> Any:
            def ours(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                if before is not None:
                    _call_note(before, args, kwargs)
                result = original(*args, **kwargs)
                if after is not None:
                    _call_note(after, args, kwargs)
                return result

            never_compile(ours)
            never_compile(_call_note)
            return ours

        self.put(owner, name, make)

    def remove(self) -> None:
        for owner, name, ours, original in reversed(self._put):
            if vars(owner).get(name) is ours:  # if other code has replaced ours since, its function stays
                setattr(owner, name, original)
        self._put.clear()


def _call_note(note: _Note, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    callback = _set_eval_frame(None)
    try:
        note(*args, **kwargs)
    finally:
        _set_eval_frame(callback)
