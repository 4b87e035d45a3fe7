"""Ways to plant a fault in one module of a built model, without touching an installed file.

`edit` rewrites the source text of one instance's forward, as if its file had been edited: the line numbers stay those
of the file. A text that is not found is an error, so that no fault is ever counted that was not planted.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class CannotPlant(Exception):
    """The model does not have the text, module or attribute that a fault changes."""


def edit(module: nn.Module, old: str, new: str, *, nth: int = 0, function: str = "", method: str = "forward") -> None:
    """Replaces the nth `old` in the forward of this instance (or in the function of its file that it calls)."""
    forward = inspect.unwrap(getattr(type(module), method))
    space = dict(forward.__globals__)
    if function:
        _bind_again(forward.__module__, space)
        space[function] = _compiled(inspect.unwrap(space[function]), space, old, new, nth)
        changed = _compiled(forward, space, "", "", 0)
    else:
        changed = _compiled(forward, space, old, new, nth)
    setattr(module, method, types.MethodType(changed, module))


def _bind_again(file: str, space: dict[str, Any]) -> None:
    """Lets the functions of the file call each other through `space`, so that an edited one is found."""
    for name, value in list(space.items()):
        if isinstance(value, types.FunctionType) and value.__module__ == file and not value.__closure__:
            again = types.FunctionType(value.__code__, space, name, value.__defaults__)
            again.__kwdefaults__ = value.__kwdefaults__
            space[name] = again


def _compiled(function: Any, space: dict[str, Any], old: str, new: str, nth: int) -> Any:
    lines, first = inspect.getsourcelines(function)
    text = textwrap.dedent("".join(lines))
    parts = text.split(old) if old else [text]
    if old and len(parts) < nth + 2:
        raise CannotPlant(f"{old!r} is not in {function.__qualname__} {nth + 1} times")
    if old:
        text = old.join(parts[: nth + 1]) + new + old.join(parts[nth + 1 :])
    tree = ast.parse(text)
    _drop_docstring_decorator(tree)
    ast.increment_lineno(tree, first - 1)
    exec(compile(tree, inspect.getsourcefile(function) or "<edited>", "exec"), space)  # our own text, just edited
    return space[function.__name__]


def _drop_docstring_decorator(tree: ast.Module) -> None:
    """transformers' auto_docstring only writes documentation, and refuses a function outside of its class."""
    definition = tree.body[0]
    if isinstance(definition, ast.FunctionDef):
        definition.decorator_list = [
            one for one in definition.decorator_list if "auto_docstring" not in ast.unparse(one)
        ]


def assign(module: nn.Module, name: str, value: Any) -> None:
    """Changes an attribute that is there."""
    if not hasattr(module, name):
        raise CannotPlant(f"{type(module).__name__} has no {name}")
    setattr(module, name, value)


def replace(model: nn.Module, path: str, module: nn.Module) -> None:
    """Puts another module in the place of one that is there."""
    model.get_submodule(path)
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def wrap(module: nn.Module, change: Callable[..., Any]) -> None:
    """`change(forward, *args, **kwargs)` runs instead of the module's forward."""
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(forward, *args, **kwargs)

    module.forward = changed


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is wrong by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class WrongActivation(torch.autograd.Function):
    """An activation whose value is right and whose gradient is wrong by a factor, as a faulty kernel is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], factor: float) -> Tensor:
        with torch.enable_grad():
            ctx.input = x.detach().requires_grad_()
            ctx.output = function(ctx.input)
        ctx.factor = factor
        return ctx.output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (result,) = torch.autograd.grad(ctx.output, ctx.input, gradient)
        return result * ctx.factor, None, None


class WrongLinear(torch.autograd.Function):
    """A linear layer whose weight or input gradient is wrong by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, of_weight: float, of_input: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factors, ctx.bias = (of_weight, of_input), bias is not None
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_input = ctx.factors
        flat = gradient.reshape(-1, gradient.shape[-1])
        bias = flat.sum(0) if ctx.bias else None
        return (
            (gradient @ weight) * of_input,
            (flat.t() @ x.reshape(-1, x.shape[-1])) * of_weight,
            bias,
            None,
            None,
        )
