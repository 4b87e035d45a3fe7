"""`check_compiled`: the check of one model on given inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch

from msprobe.pytorch.compiled.check.answer import CompiledCheck
from msprobe.pytorch.compiled.check.session import CheckSession

DIRECTORY = "./compiled_check"


def check_compiled(
    model: Any,
    *inputs: Any,
    backend: Optional[Any] = None,
    more_inputs: Sequence[Sequence[Any]] = (),
    directory: Union[str, Path] = DIRECTORY,
    **named_inputs: Any,
) -> CompiledCheck:
    """Calls the model and checks each compiled graph in it, forward and backward: print the result.

    A model that is not compiled is compiled completely, with `backend` (default "inductor"). `more_inputs` are
    further calls, for dynamic shapes. Reproducers of wrong nodes go to `directory`.
    """
    compiled = is_compiled(model)
    if compiled and backend is not None:
        raise ValueError("backend: the model is already compiled, and is checked with its own backend. Leave it out.")
    called = model if compiled else torch.compile(model, backend=backend or "inductor")
    with CheckSession(Path(directory)) as session:
        called(*inputs, **named_inputs)
        for others in more_inputs:
            called(*others)
    return session.answer


def is_compiled(model: Any) -> bool:
    """Whether the model, or a module in it, is compiled."""
    if isinstance(model, torch.nn.Module):
        return any(
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
            or hasattr(module.forward, "_torchdynamo_orig_callable")
            for module in model.modules()
        )
    return hasattr(model, "_torchdynamo_orig_callable")
