"""The variables of save(), as tensors of MindSpore."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Callable

from mindspore._c_expression import TensorPy

from msprobe.mindspore.executor import requires_grad
from msprobe.mindspore.gradients.backward_graph import node_of, tensors_in


class MindSporeVariables:
    def undisturbed(self) -> AbstractContextManager[Any]:
        return nullcontext()  # nothing is cached, and no hook sees the rendering

    def differentiable(self, variable: Any) -> list[Any]:
        if not requires_grad():
            return []
        return [tensor for tensor in tensors_in(variable, []) if node_of(tensor) is not None]

    def on_gradient(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None]:
        return partial(TensorPy.remove_hook, TensorPy.register_hook(tensor, hook))
