"""Finds which operator the script used: ``x + y``, ``1 + x`` and ``x.add(y)`` all reach a mode as ``Tensor.add``.

Records have the names ``Tensor.__add__`` and ``Tensor.__radd__``. While collecting, the operators that lose their name
are replaced on ``torch.Tensor`` by functions that only pass the call on. They store nothing: the handler of the mode
finds them as the frame below its own, so there is no state that could be out of date or belong to another thread.
``remove`` restores ``torch.Tensor`` exactly.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable, Optional

import torch

from msprobe.frameworks.pytorch.operators import ARRIVES_AS


def _pass_on(dunder: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only calls `original`. `take` recognises it by its own code object."""

    def operator(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    operator.__code__ = operator.__code__.replace(co_name=dunder)
    operator.__name__ = dunder
    operator.__qualname__ = f"Tensor.{dunder}"
    operator.__doc__ = original.__doc__
    return operator


class OperatorNames:
    """Installed while a step is collected, for all threads. install and remove may be called twice."""

    def __init__(self) -> None:
        self._operators: dict[str, Callable[..., Any]] = {}
        # By id: hashing a code object reads all of it. The ids stay valid, because _operators holds the code.
        self._by_code: dict[int, tuple[str, Any]] = {}
        self._originals: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._installed = False
        for dunder, method in ARRIVES_AS.items():
            original, arriving = getattr(torch.Tensor, dunder, None), getattr(torch.Tensor, method, None)
            if original is not None and arriving is not None:
                operator = _pass_on(dunder, original)
                self._operators[dunder] = operator
                self._originals[dunder] = original
                self._by_code[id(operator.__code__)] = (dunder, arriving)

    def install(self) -> None:
        """Puts the operators on torch.Tensor and keeps the originals."""
        if self._installed:
            return
        own = vars(torch.Tensor)
        self._before = {dunder: own[dunder] for dunder in self._operators if dunder in own}
        for dunder, operator in self._operators.items():
            if getattr(torch.Tensor, dunder) is self._originals[dunder]:  # the script may have wrapped it
                setattr(torch.Tensor, dunder, operator)
        self._installed = True

    def remove(self) -> None:
        """Undoes install, but leaves operators that other code has replaced since."""
        if not self._installed:
            return
        for dunder, operator in self._operators.items():
            if vars(torch.Tensor).get(dunder) is not operator:
                continue
            if dunder in self._before:
                setattr(torch.Tensor, dunder, self._before[dunder])
            else:
                delattr(torch.Tensor, dunder)
        self._before = {}
        self._installed = False

    def take(self, func: Callable[..., Any], depth: int = 2) -> Optional[str]:
        """The operator through which `func` was called; None if it was called by its own name.

        The ``__torch_function__`` of the mode must call this itself; one call further away, `depth` is 3. Handlers of
        other modes between the operator and ours are skipped.
        """
        frame: Optional[FrameType] = sys._getframe(depth)
        while frame is not None:
            found = self._by_code.get(id(frame.f_code))
            if found is not None:
                return found[0] if found[1] is func else None
            if frame.f_code.co_name != "__torch_function__":
                return None
            frame = frame.f_back
        return None
