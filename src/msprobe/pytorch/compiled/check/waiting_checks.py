"""Checks that wait for the backward pass of the script, whose gradients they use.

A check runs when the next compiled graph begins, or at the end: never inside a backward pass. Until then it keeps
copies of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, Optional

import torch

from msprobe.pytorch.compiled.check.runs import Incoming


class CallContext:
    """What the script has set around a call: a check that runs later must see the same."""

    def __init__(self) -> None:
        devices = (
            "cpu",
            *(name for name in ("cuda", "npu") if hasattr(torch, name) and getattr(torch, name).is_available()),
        )
        self._grad = torch.is_grad_enabled()
        self._autocast = [
            {"device_type": name, "dtype": torch.get_autocast_dtype(name), "enabled": torch.is_autocast_enabled(name)}
            for name in devices
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for settings in self._autocast:
                stack.enter_context(torch.autocast(**settings))
            yield


class Gradients:
    """The gradients of the results of one call, kept when the script's backward pass computes them."""

    def __init__(self, results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> None:
        self._found: list[Optional[torch.Tensor]] = [None] * len(results)
        given = {id(value) for value in inputs}
        self.expected = False
        for place, result in enumerate(results):
            if result.requires_grad and result.grad_fn is not None and id(result) not in given:
                self.expected = True
                result.register_hook(torch.compiler.disable(partial(self._keep, place)))

    def _keep(self, place: int, gradient: torch.Tensor) -> None:
        if self._found[place] is None:
            self._found[place] = gradient.detach().clone()

    @property
    def incoming(self) -> Incoming:
        """None if no backward pass has reached the call."""
        return self._found if any(gradient is not None for gradient in self._found) else None


class WaitingChecks:
    """The checks that wait."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Gradients, Callable[[Incoming], None]]] = []

    def add(self, gradients: Gradients, check: Callable[[Incoming], None]) -> None:
        self._waiting.append((gradients, check))

    def run_ready(self, all: bool = False) -> None:
        """Runs the checks whose gradients are known, or all of them."""
        ready = [one for one in self._waiting if all or one[0].incoming is not None]
        self._waiting = [one for one in self._waiting if one not in ready]
        for gradients, check in ready:
            check(gradients.incoming)
