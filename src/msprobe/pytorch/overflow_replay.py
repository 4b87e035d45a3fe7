"""One recorded call again, from the tensors that overflow_check saved with it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from msprobe.check import arguments, names
from msprobe.check.examine import loader
from msprobe.check.framework import NotCallable
from msprobe.check.generate import NotMade
from msprobe.check.pytorch_call import TorchCall, as_tensor
from msprobe.check.pytorch_resolve import Callables, Found
from msprobe.dump.errors import DumpError
from msprobe.dump.reader import RankDump


class Replayed(NamedTuple):
    again: bool
    lines: list[str]


def replay(rank: RankDump, name: str) -> Replayed:
    """Runs it and looks. Raises DumpError, with the reason, where the record does not hold all that it takes."""
    record = rank.records[name]
    parsed = names.parse(name)
    if parsed is None:
        raise DumpError(f"{name} is no API's record: only an API can be replayed. Collect at level L1 or mix.")
    backward = parsed.direction == "backward"
    forward = {"input_args": record.get("forward_args"), "input_kwargs": record.get("forward_kwargs")}
    if not backward:
        forward = record
    if not isinstance(forward.get("input_args"), list):
        raise DumpError(f"{name} was recorded without what its forward received: only a producer can be replayed.")
    if record.get("inputs_may_be_changed"):
        raise DumpError(f"{name} cannot be replayed: it changed what it received, which was too large to be kept.")
    load = loader(rank)
    try:
        found = Callables().find(parsed.title)
        _all_saved(forward)
        around = _around(found, record, load)
        results = TorchCall(around, name, forward, record if backward else None, load).run("cpu")
    except (NotMade, NotCallable) as error:
        raise DumpError(f"{name} cannot be replayed: {error}.") from None
    except RuntimeError as error:
        raise DumpError(f"{name} cannot be replayed here: {str(error).splitlines()[0]}") from None
    tensors = results.gradients if backward else results.outputs
    lines = [_line(number, tensor) for number, tensor in enumerate(tensors) if tensor is not None]
    notes = ["ones stand in for inputs of its forward that autograd had not kept"]
    shown = [line for _, line in lines] + (notes if record.get("forward_inputs_gone") else [])
    return Replayed(any(bad for bad, _ in lines), shown)


def _all_saved(forward: dict[str, Any]) -> None:
    """Generated values would show nothing: every tensor must be the recorded one."""
    for item in arguments.read(forward).tensors:
        if not isinstance(item.get("data_name"), str):
            raise NotMade("a tensor that it received was not saved")


def _around(found: Found, record: dict[str, Any], load: Any) -> Found:
    """The function, in the autocast and with the random state of its call."""
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

    return Found(replace(found.api, random=False), call)


def _line(number: int, tensor: Any) -> tuple[bool, str]:
    head = f"output {number}, {tensor.dtype} {list(tensor.shape)}"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False, f"{head}: no floats"
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    if nan or inf:
        return True, f"{head}: {nan} NaN and {inf} infinite of {tensor.numel()} values"
    return False, f"{head}: finite"
