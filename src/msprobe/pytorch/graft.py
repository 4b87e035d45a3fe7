"""Gives a call or a module the values of a different run, with its gradient path intact.

`put` replaces the values of a tensor. `grafted` does so for modules while a block runs. `causal_shares` says how much
of the difference of a number each layer explains.

    shares = causal_shares({"layers.0": (model.layers[0], golden_output), …}, lambda: float(model(batch).mean()), 3.29)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, Optional

import torch

from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tasks.perturb import map_leaves
from msprobe.stats.shares import shares


class GraftError(ValueError):
    """The value cannot be put there."""


class _Replaced(torch.autograd.Function):
    """Returns `golden`; the gradient goes to `own` as it comes."""

    @staticmethod
    def forward(ctx: Any, own: Any, golden: Any) -> Any:
        ctx.dtype = own.dtype
        return golden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch._C.DisableTorchFunction():  # the cast is no call of the script: it is not recorded
            return gradients[0].to(ctx.dtype), None


def put(own: Any, golden: Any, given: Sequence[Any] = ()) -> Any:
    """The tensor `own` with the values of `golden`, bit for bit; the graph behind `own` stays.

    The values are written into the memory of `own`: views and later in-place writes see them, and so does the backward
    of a call that saved its result. `given` are the inputs of the call: a call that returned its input unchanged must
    not change it, so a new tensor takes its place. So it does if the dtypes differ. A new tensor is a new node of the
    graph, which may change the order in which gradients are added; `own` stays if it has the golden bits already.
    Raises GraftError if the shapes differ.
    """
    if own.shape != golden.shape:
        raise GraftError(f"its shape is {list(own.shape)}, and that of the golden value {list(golden.shape)}")
    golden = golden.to(own.device)
    unchanged = any(own is one for one in given)
    if unchanged or own.dtype != golden.dtype or _overlaps(own):
        return own if same_bits(own, golden) else _Replaced.apply(own, golden)
    own.data.copy_(golden)
    return own


def same_bits(own: Any, golden: Any) -> bool:
    """Whether two tensors of one shape have the same dtype and the same bits: -0 is not 0, and a NaN is itself."""
    if own.dtype != golden.dtype:
        return False
    one, other = (tensor.detach().flatten().contiguous().view(torch.uint8) for tensor in (own, golden))
    return torch.equal(one, other)


def _overlaps(tensor: Any) -> bool:
    """Whether elements share memory, as after expand()."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


@contextmanager
def grafted(values: Mapping[torch.nn.Module, Any]) -> Iterator[None]:
    """While the block runs, each of these modules returns the given tensors. A module that is called several times
    returns them each time."""
    with ExitStack() as stack:
        for module, golden in values.items():
            stack.callback(module.register_forward_hook(partial(_replace_output, golden)).remove)
        yield


def _replace_output(golden: Any, module: Any, args: Any, output: Any) -> Any:
    found, wanted = tensors_in(output, []), tensors_in(golden, [])
    if len(found) != len(wanted):
        raise GraftError(f"it returns {len(found)} tensors, and the golden run {len(wanted)}")
    given = tensors_in(args, [])
    return put_all(output, wanted, given)


def put_all(value: Any, golden: Sequence[Any], given: Sequence[Any] = ()) -> Any:
    """A nested value with the values of `golden` in its tensors, in order; None there keeps the own one."""
    wanted = iter(golden)

    def replace(own: Any) -> Any:
        if not isinstance(own, torch.Tensor):
            return own
        other = next(wanted, None)
        return own if other is None else put(own, other, given)

    return map_leaves(value, replace)


def causal_shares(
    layers: Mapping[str, tuple[torch.nn.Module, Any]], measure: Callable[[], float], golden: float
) -> dict[str, Optional[float]]:
    """The share of each layer in the difference between `measure()` and `golden`, in the order given.

    `layers` has each layer with its golden output, in the order of execution. A graft at a layer removes what this
    layer and all before it do wrong, so the share of a layer is what changes when the graft moves from before it to
    behind it. The shares add up to what the last graft explains.
    """
    names = list(layers)
    wrong = measure()
    after: list[float] = []
    for name in names:
        module, output = layers[name]
        with grafted({module: output}):
            after.append(measure())
    return dict(zip(names, shares(wrong, golden, after)))
