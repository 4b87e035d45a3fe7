"""Linear with factors in an emulated format: the forward product, and both products of the backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Optional

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from msprobe.pytorch.emulation.fake_quantise import fake_quantise
from msprobe.stats.formats import Format

Tensor = Any


class QuantisedLinear(torch.autograd.Function):
    """y = x W^T + b. Each product quantises its factors along the axis over which it adds. With `seeds`, gradients are
    rounded stochastically."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], form: Format, seeds: Optional[Iterator[int]]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.form, ctx.biased, ctx.seeds = form, bias is not None, seeds
        flat = x.reshape(-1, x.shape[-1])
        y = fake_quantise(flat, form) @ fake_quantise(weight, form, weight=True).T
        if bias is not None:
            y = y + bias.to(torch.float32)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return y.reshape(*x.shape[:-1], weight.shape[0]).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        form: Format = ctx.form

        def kept(part: Tensor) -> Tensor:
            return fake_quantise(part, form, seed=None if ctx.seeds is None else next(ctx.seeds))

        gradient = gradients[0].reshape(-1, weight.shape[0])
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            turned = fake_quantise(weight.T, form, weight=True).T
            of_x = (kept(gradient) @ turned).reshape(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            flat = x.reshape(-1, x.shape[-1])
            of_weight = (kept(gradient.T) @ fake_quantise(flat.T, form).T).to(weight.dtype)
        if ctx.biased and ctx.needs_input_grad[2]:
            of_bias = gradient.to(torch.float32).sum(0).to(weight.dtype)
        return of_x, of_weight, of_bias, None, None


@contextmanager
def emulating(form: Format, keep: Collection[str] = (), stochastic: bool = False) -> Iterator[Emulation]:
    """Inside this block, Linear modules compute in the format; those whose path matches `keep` do not. `stochastic`
    rounds gradients so."""
    emulation = Emulation(form, keep, stochastic)
    emulation.install()
    try:
        yield emulation
    finally:
        emulation.remove()


class Emulation:
    """Replaces `Linear.forward`. The first module that is called is the model; its paths are those of `keep`."""

    def __init__(self, form: Format, keep: Collection[str] = (), stochastic: bool = False) -> None:
        self._form = form
        self._seeds = count() if stochastic else None  # each gradient has its own: one seed would add up its errors
        self._keep = keep
        self._names: dict[int, str] = {}
        self._original: Callable[..., Any] = torch.nn.Linear.forward
        self._hook: Any = None
        self.emulated: set[str] = set()
        """The modules that computed in the format."""
        self.kept: set[str] = set()

    def install(self) -> None:
        emulation, original = self, self._original

        def forward(module: Any, input: Tensor) -> Any:
            if not emulation._takes(module):
                return original(module, input)
            return QuantisedLinear.apply(input, module.weight, module.bias, emulation._form, emulation._seeds)

        torch.nn.Linear.forward = forward
        self._hook = register_module_forward_pre_hook(self._model_called)

    def remove(self) -> None:
        torch.nn.Linear.forward = self._original
        if self._hook is not None:
            self._hook.remove()

    def _model_called(self, module: Any, args: Any) -> None:
        if next(module.parameters(), None) is not None:
            self._hook.remove()
            self._names = {id(one): name for name, one in module.named_modules()}

    def _takes(self, module: Any) -> bool:
        name = self._names.get(id(module), type(module).__name__)
        kept = any(fnmatchcase(name, pattern) for pattern in self._keep)
        (self.kept if kept else self.emulated).add(name)
        return not kept
