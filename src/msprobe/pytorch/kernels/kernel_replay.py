"""`backward_input` (level L2, task tensor): runs the backward of one API from a gradient dumped earlier.

It is a second run on copies: the tensors, the graph and the random state of the script do not change. Only the kernels
of this run are recorded as the backward of the API, not those of the script's own backward pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from msprobe.collect import notices
from msprobe.collect.run.lifecycle import UsageError
from msprobe.config import Settings
from msprobe.dump.names import backward_of
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.kernels.kernel_calls import Kernels


class Replay:
    """Waits for the forward call of the API, then runs its backward."""

    def __init__(self, api: str, gradients: Sequence[Any], kernels: Kernels) -> None:
        self._name = api
        self._kernels = kernels
        self._gradients = gradients
        kernels.replays = True

    def after(self, name: str, parents: Sequence[str], func: Any, args: Any, kwargs: Any) -> None:
        """A call has returned; `name` is its forward name."""
        if backward_of(name) != self._name or self._kernels.recorder.closed:
            return
        try:
            self._run(tuple(map(backward_of, parents)), func, args, kwargs)
        except Exception:
            self._kernels.recorder.fault(self._name, traceback.format_exc())
            notices.warn_once(f"the backward of {name} could not be run again: see dump_error_info.log.")

    def _run(self, parents: tuple[str, ...], func: Any, args: Any, kwargs: Any) -> None:
        kernels = self._kernels
        leaves: list[Any] = []
        kernels.remove()
        try:
            with torch.random.fork_rng(enabled=True), torch.enable_grad():
                output = func(*_copied(args, leaves), **_copied(kwargs, leaves))
            outputs = [tensor for tensor in tensors_in(output, []) if tensor.requires_grad]
        finally:
            kernels.install()
        shapes = [list(tensor.shape) for tensor in outputs]
        given = [list(tensor.shape) for tensor in self._gradients]
        if shapes != given:
            notices.warn_once(f"backward_input has shapes {given}, the outputs of {self._name} have {shapes}: not run.")
            return
        kernels.forced = parents
        try:
            gradients = [given.to(tensor.device, tensor.dtype) for given, tensor in zip(self._gradients, outputs)]
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
        finally:
            kernels.forced = None


def replay_of(settings: Settings, kernels: Kernels) -> Any:
    """The replay that a configuration asks for, or None."""
    gradients = dumped_gradients(settings)
    if not gradients:
        return None
    section: Any = settings.section
    return Replay((section.scope or section.list)[0], gradients, kernels)


def dumped_gradients(settings: Settings) -> list[Any]:
    """The gradients in the files of `backward_input`. Raises UsageError if one cannot be read."""
    return [_load(path) for path in getattr(settings.section, "backward_input", ())]


def _load(path: Path) -> Any:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(f"backward_input {path} cannot be read: {error}") from None
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"backward_input {path} holds a {type(value).__name__}; expected a tensor.")
    return value


def _copied(value: Any, leaves: list[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.requires_grad:
            return value.detach().clone()
        leaf = value.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()  # the API may write to it
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(member, leaves) for member in value)
    if isinstance(value, dict):
        return {key: _copied(member, leaves) for key, member in value.items()}
    return value
