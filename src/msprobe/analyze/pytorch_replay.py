"""Runs a recorded PyTorch call again, with the autocast state and the random state of its run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Optional

import torch

from msprobe.check.core.framework import Load
from msprobe.check.pytorch.call import TorchCall, as_tensor
from msprobe.check.pytorch.resolve import Callables, ResolvedApi


def call_around(
    title: str, name: str, forward: dict[str, Any], backward: Optional[dict[str, Any]], load: Load
) -> TorchCall:
    """Raises NotCallable; or NotMade if the records do not have everything that the call needs."""
    return TorchCall(_around(Callables().find(title), forward, load), name, forward, backward, load)


def _around(found: ResolvedApi, record: dict[str, Any], load: Load) -> ResolvedApi:
    autocast = record.get("autocast")
    state = record.get("random_state")

    def call(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            dtype = getattr(torch, str(autocast.get("cpu", "")).partition(".")[2], None) if autocast else None
            if isinstance(dtype, torch.dtype):
                stack.enter_context(torch.autocast("cpu", dtype))
            if isinstance(state, dict):
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.set_rng_state(as_tensor(load(state)))
            return found.func(*args, **kwargs)

    return ResolvedApi(replace(found.api, random=False), call)
