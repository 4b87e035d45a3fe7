"""Compiled autograd: a backward pass that torch compiles must not have our hooks.

Torch would trace them into the compiled pass, with a graph break at each, and compile it again when collecting begins.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from msprobe.collect import notices
from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.parameter_gradients import ParameterGradients
from msprobe.pytorch.replacements import Replacements

_OURS = __name__.partition(".")[0]


class CompiledBackward(Companion):
    """Removes our hooks from the graph before a compiled backward pass begins. Gradients of parameters are read
    later."""

    def __init__(self, recorder: Recorder, gradients: ParameterGradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._replacements = Replacements()

    def install(self, models: Sequence[Any]) -> None:
        if not self._replacements:
            self._replacements.put_around(torch.autograd, "_engine_run_backward", self._take_off)

    def remove(self) -> None:
        self._replacements.remove()

    def _take_off(self, outputs: Any, *args: Any, **kwargs: Any) -> None:
        try:
            if not is_enabled() or self._recorder.closed:
                return
            notices.warn_once(
                "the backward pass is compiled (compiled autograd): msprobe does not see the gradients inside it, "
                "only those of the parameters, after it."
            )
            with torch._C.DisableTorchFunction():
                self._gradients.drop_parameters()
                for node in _nodes_below(outputs):
                    for register in (node.register_hook, node.register_prehook):
                        _take_off(register)
        except Exception:
            self._recorder.fault("compiled autograd", traceback.format_exc())


def is_enabled() -> bool:
    """Whether torch compiles backward passes at the moment."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def _take_off(register: Any) -> None:
    """Removes our hooks from a node. A node does not list its hooks, but the handle of a new hook has the table of
    all."""
    handle = register(_nothing)
    hooks = handle.hooks_dict_ref()
    for key, hook in list(hooks.items()):
        if hook is _nothing or (isinstance(hook, partial) and hook.func.__module__.startswith(_OURS)):
            del hooks[key]


def _nothing(*gradients: Any) -> None:
    """A hook that does nothing."""


def _nodes_below(outputs: Any) -> Iterator[Any]:
    tensors = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    waiting = [tensor.grad_fn for tensor in tensors if getattr(tensor, "grad_fn", None) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
