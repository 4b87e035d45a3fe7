"""Runs one recorded call again, from the tensors that overflow_check saved with it."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from msprobe.check.core import arguments, framework
from msprobe.check.core.examine import loader
from msprobe.check.core.framework import FAILURES, Call, Framework, NotCallable
from msprobe.check.core.generate import NotMade
from msprobe.dump.errors import DumpError
from msprobe.dump.names import parse_api_name
from msprobe.dump.reader import RankDump
from msprobe.dump.record_keys import FORWARD_ARGS, FORWARD_KWARGS, INPUT_ARGS, INPUT_KWARGS
from msprobe.messages import Argument, Message


class Replayed(NamedTuple):
    again: bool
    lines: list[str]


def replay(rank: RankDump, name: str) -> Replayed:
    """Runs the call and checks its results. Raises DumpError with the reason if the record does not have everything it
    needs."""
    record = rank.records[name]
    parsed = parse_api_name(name)
    if name.startswith("Jit."):
        raise DumpError(f"{name} is a compiled region: its code is not in the dump, so it cannot be replayed.")
    if parsed is None:
        raise DumpError(f"{name} is not an API record: only an API can be replayed. Collect at level L1 or mix.")
    backward = record if parsed.direction == "backward" else None
    forward = record
    if backward is not None:
        forward = {**record, INPUT_ARGS: record.get(FORWARD_ARGS), INPUT_KWARGS: record.get(FORWARD_KWARGS)}
    if not isinstance(forward.get(INPUT_ARGS), list):
        raise DumpError(f"{name} has no inputs of its forward in the dump: only a producer can be replayed.")
    if record.get("inputs_may_be_changed"):
        raise DumpError(f"{name} cannot be replayed: it changed its inputs, and they were too large to copy.")
    known = framework.load(str(rank.head.get("framework")))
    try:
        all_saved(forward)
        results = call_of(known, rank, parsed.title, name, forward, backward).run("cpu")
    except (NotMade, NotCallable) as error:
        raise DumpError(f"{name} cannot be replayed: {error}.") from None
    except FAILURES as error:
        raise DumpError(f"{name} cannot be replayed here: {first_line(error)}") from None
    tensors = results.outputs if backward is None else results.gradients
    if backward is not None and not tensors and results.made:
        raise DumpError(f"{name} cannot be replayed here: {results.made}")
    seen = [_line(known, number, tensor) for number, tensor in enumerate(tensors) if tensor is not None]
    lines: list[str] = [line for _, line in seen]
    if record.get("forward_inputs_gone"):
        lines.append(Message("replay.ones"))
    if results.random:
        lines.append(Message("replay.random"))
    return Replayed(any(bad for bad, _ in seen), lines)


def call_of(
    known: Framework,
    rank: RankDump,
    title: str,
    name: str,
    forward: dict[str, Any],
    backward: Optional[dict[str, Any]],
) -> Call:
    if rank.head.get("framework") == "pytorch":
        from msprobe.analyze.pytorch_replay import call_around

        return call_around(title, name, forward, backward, loader(rank))
    return known.call(title, name, forward, backward, loader(rank))


def all_saved(forward: dict[str, Any]) -> None:
    """Raises NotMade unless every tensor was saved: generated values would prove nothing."""
    for item in arguments.read(forward).tensors:
        if not isinstance(item.get("data_name"), str):
            raise NotMade("one of its input tensors was not saved")


def first_line(error: Exception) -> str:
    return next(filter(None, (line.strip(" -") for line in str(error).splitlines())), type(error).__name__)


def _line(known: Framework, number: int, tensor: Any) -> tuple[bool, Message]:
    head: dict[str, Argument] = {"number": number, "dtype": known.dtype_text(tensor), "shape": str(list(tensor.shape))}
    flat = known.flat(tensor)
    if flat.dtype.kind not in "fc":
        return False, Message("replay.no_floats", **head)
    nan, inf = int(np.isnan(flat).sum()), int(np.isinf(flat).sum())
    if nan or inf:
        return True, Message("replay.not_finite", **head, nan=nan, inf=inf, values=flat.size)
    return False, Message("replay.finite", **head)
