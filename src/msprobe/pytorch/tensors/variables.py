"""The variables of save(), as tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch

from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tensors.tensor_text import TensorTexts


class TorchVariables:
    def __init__(self, texts: TensorTexts) -> None:
        self._texts = texts

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        with torch._C.DisableTorchFunction():
            self._texts.forget()
            yield

    def differentiable(self, variable: Any) -> list[Any]:
        return [tensor for tensor in tensors_in(variable, []) if tensor.requires_grad]

    def on_gradient(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None]:
        remove: Callable[[], None] = tensor.register_hook(hook).remove
        return remove
