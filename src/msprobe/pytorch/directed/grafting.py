"""The grafts of one step: which call gets which golden values, that they were put there, and that putting the call's
own values there changes nothing (the self-test, before every graft)."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Callable, TypeVar, cast

import numpy as np
import torch

from msprobe.collect.gradients.backward_record import BackwardRecord, assign_exits
from msprobe.config.directions import Graft
from msprobe.pytorch.gradients.backward_graph import InputEdges, tensors_in, walk
from msprobe.pytorch.graft import GraftError, put_all, same_bits

_F = TypeVar("_F", bound=Callable[..., Any])


def _unseen(function: _F) -> _F:
    """What a graft computes is no call of the script: it is not recorded."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return cast(_F, run)


class Grafts:
    """The grafts of one step and rank. `done` counts for the report."""

    def __init__(self, wanted: list[Graft]) -> None:
        self._wanted: dict[tuple[str, str], Graft] = {(one.name, one.what): one for one in wanted}
        self.names = {one.name for one in wanted}
        self.done: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.problems: list[str] = []
        self._passed_over: set[str] = set()
        """Calls whose arguments do not agree with `given`."""
        self.on_write: Callable[[list[Any]], None] = lambda tensors: None
        """Called with tensors whose memory was written: their version counters have not moved."""

    def report(self) -> dict[str, Any]:
        passed_over = sorted(self._passed_over)
        return {
            "done": dict(self.done), "changed": dict(self.changed), "problems": self.problems,
            "passed_over": passed_over,
        }  # fmt: skip

    def put_inputs(self, name: str, args: Any, kwargs: Any) -> None:
        """Before a call: writes golden values into its arguments. Or passes the call over: different arguments have a
        cause of their own, which a golden result would hide."""
        output = self._wanted.get((name, "output"))
        if output is not None and output.given and not self._agrees(output, tensors_in((args, kwargs), [])):
            self._passed_over.add(name)
        wanted = self._wanted.get((name, "input"))
        if wanted is not None:
            self._put(wanted, (args, kwargs), [])

    @_unseen
    def _agrees(self, wanted: Graft, found: list[Any]) -> bool:
        try:
            golden = [load(file) for file in wanted.given if file is not None]
        except (OSError, RuntimeError) as error:
            self.problems.append(f"{wanted.name}: {error}")
            return False
        return len(golden) == len(found) and all(map(_agree, found, golden))

    def put_parameters(self, name: str, parameters: Any) -> None:
        """Before a module is called: writes golden values into its parameters."""
        wanted = self._wanted.get((name, "parameters"))
        if wanted is not None:
            self._put(wanted, [parameters[one] for one in wanted.names], [])

    def put_outputs(self, name: str, output: Any, given: list[Any]) -> Any:
        """After a call: its result with golden values."""
        wanted = self._wanted.get((name, "output"))
        return output if wanted is None or name in self._passed_over else self._put(wanted, output, given)

    def hook_parameters(self, title: str, parameters: Any) -> list[Any]:
        """Gives the parameters of a module golden gradients, as soon as they have theirs. Returns the handles."""
        wanted = self._wanted.get((title, "parameter_gradients"))
        if wanted is None:
            return []
        found = [(parameters.get(name), file) for name, file in zip(wanted.names, wanted.values)]
        return [
            one.register_post_accumulate_grad_hook(partial(self._set_gradient, wanted, file))
            for one, file in found
            if one is not None and one.requires_grad and file is not None
        ]

    def _set_gradient(self, wanted: Graft, file: str, parameter: Any) -> None:
        self._put(wanted_alone(wanted, file), [parameter.grad], [])

    @_unseen
    def _put(self, wanted: Graft, value: Any, given: list[Any]) -> Any:
        found = tensors_in(value, [])
        try:
            golden = [None if file is None else load(file) for file in wanted.values]
            if len(golden) != len(found):
                raise GraftError(f"it has {len(found)} tensors, and the golden run {len(golden)}")
            own = [one.detach().clone() for one in found]
            tested = put_all(value, own, given)
            if not all(map(same_bits, tensors_in(tested, []), own)):
                self.problems.append(f"{wanted.name}: putting its own values there changes bits")
                return value
            value = put_all(value, golden, given)
            self.on_write(found)
            self.done[wanted.name] += 1
            self.changed[wanted.name] += sum(
                int((one != new).sum()) if one.shape == new.shape else new.numel()
                for one, new in zip(own, tensors_in(value, []))
            )
        except (GraftError, OSError, RuntimeError) as error:
            self.problems.append(f"{wanted.name}: {error}")
        return value

    def wants_gradient(self, name: str) -> bool:
        return (name, "gradient") in self._wanted and name not in self._passed_over

    def put_gradients(self, name: str, inputs: InputEdges, output: Any) -> None:
        """Hooks the graph of a call that has just returned `output`: its backward gives the golden gradients."""
        wanted = self._wanted[name, "gradient"]
        entries: dict[Any, list[tuple[int, int]]] = {}
        for position, tensor in enumerate(tensors_in(output, [])):
            if tensor.grad_fn is not None:
                entries.setdefault(tensor.grad_fn, []).append((position, tensor.output_nr))
        record = BackwardRecord(name, [], len(entries), inputs.count)
        agrees = [True]
        if wanted.given:
            for node, places in entries.items():
                node.register_prehook(partial(self._check_incoming, wanted, places, agrees))
        placed: set[int] = set()
        for node, leading in assign_exits(record, walk(entries, inputs)).items():
            node.register_hook(partial(self._replace_gradients, wanted, leading, agrees, placed))

    @_unseen
    def _check_incoming(self, wanted: Graft, places: Any, agrees: list[bool], incoming: Any) -> None:
        """A different incoming gradient has a cause of its own, which a golden gradient would hide."""
        for position, number in places:
            file = wanted.given[position] if position < len(wanted.given) else None
            if file is not None and incoming[number] is not None and not _agree(incoming[number], load(file)):
                agrees[0] = False

    @_unseen
    def _replace_gradients(
        self, wanted: Graft, leading: Any, agrees: list[bool], placed: set[int], outgoing: Any, incoming: Any
    ) -> Any:
        """`placed`: the arguments that have their gradient. If several edges lead to an argument, the others add 0."""
        if not agrees[0]:
            return None
        try:
            new = list(outgoing)
            for slot, position in leading:
                file = wanted.values[position] if position < len(wanted.values) else None
                if file is None or new[slot] is None:
                    continue
                golden = load(file).to(new[slot])
                if golden.shape != new[slot].shape:
                    raise GraftError("the shapes of the gradients differ")
                self.changed[wanted.name] += int((golden != new[slot]).sum())
                new[slot] = torch.zeros_like(golden) if position in placed else golden
                placed.add(position)
            self.done[wanted.name] += 1
            return tuple(new)
        except Exception:
            self.problems.append(f"{wanted.name}: {traceback.format_exc(limit=1).splitlines()[-1]}")
            return None


def wanted_alone(wanted: Graft, file: str) -> Graft:
    return replace(wanted, values=(file,))


def _agree(own: Any, golden: Any) -> bool:
    """Whether two tensors are the same except for rounding. Whole numbers must be equal."""
    own, golden = own.detach().cpu(), golden.detach()
    if own.shape == golden.shape and same_bits(own, golden):
        return True
    if own.shape != golden.shape or own.dtype.is_complex != golden.dtype.is_complex:
        return False
    if not (own.is_floating_point() or own.is_complex()):
        return torch.equal(own, golden)
    limit = max(1e-3, 4 * torch.finfo(own.dtype).eps)
    wide = torch.complex128 if own.is_complex() else torch.float64
    own, golden = own.to(wide), golden.to(wide)
    equal = (own == golden) | (own.isnan() & golden.isnan())
    difference = (own - golden).masked_fill(equal, 0)
    return bool(difference.norm() <= limit * golden.masked_fill(~golden.isfinite(), 0).norm())


def load(file: str) -> Any:
    """A tensor of a dump."""
    if Path(file).suffix == ".npy":
        return torch.from_numpy(np.load(file, allow_pickle=False).copy())
    return torch.load(file, map_location="cpu", weights_only=True).detach()
