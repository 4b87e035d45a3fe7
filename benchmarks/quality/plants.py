"""Plants that fit any model: each function returns a change of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from architectures import Batch
from edits import CannotPlant, ScaledGradient, WrongActivation, WrongLinear, assign, edit, replace, wrap
from torch import Tensor, nn
from training import Experiment, Plant


def edited(path: str, old: str, new: str, *, nth: int = 0, function: str = "", method: str = "forward") -> Plant:
    """The source of one module's forward, with a text replaced."""
    return lambda run: edit(run.module(path), old, new, nth=nth, function=function, method=method)


def assigned(path: str, name: str, value: Any) -> Plant:
    return lambda run: assign(run.module(path), name, value)


def replaced(path: str, make: Callable[[], nn.Module]) -> Plant:
    return lambda run: replace(run.model, path, make())


def together(*plants: Plant) -> Plant:
    def plant(run: Experiment) -> None:
        for one in plants:
            one(run)

    return plant


def scaled(path: str, factor: float) -> Plant:
    """The output of a module times a factor: the extra call is inside the module."""

    def change(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) * factor

    return lambda run: wrap(run.module(path), change)


def skipped(path: str) -> Plant:
    """The module returns its first input."""
    return lambda run: wrap(run.module(path), lambda forward, x, *args, **kwargs: x)


def gradient_scaled(path: str, factor: float) -> Plant:
    """The gradient of a module's output is wrong by a factor: its backward is given another gradient."""

    def change(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return ScaledGradient.apply(forward(*args, **kwargs), factor)

    return lambda run: wrap(run.module(path), change)


def wrong_activation(path: str, factor: float) -> Plant:
    """An activation module whose backward is wrong by a factor."""

    def change(forward: Callable[..., Any], x: Tensor) -> Any:
        return WrongActivation.apply(x, forward, factor)

    return lambda run: wrap(run.module(path), change)


def wrong_linear(path: str, of_weight: float = 1.0, of_input: float = 1.0) -> Plant:
    """A linear layer whose gradients are wrong by a factor."""

    def plant(run: Experiment) -> None:
        layer = run.module(path)
        wrap(layer, lambda forward, x: WrongLinear.apply(x, layer.weight, layer.bias, of_weight, of_input))

    return plant


def parameter_hook(name: str, factor: float) -> Plant:
    def plant(run: Experiment) -> None:
        run.model.get_parameter(name).register_hook(lambda gradient: gradient * factor)

    return plant


def output_hook(path: str, factor: float) -> Plant:
    """A tensor hook on a module's output scales the gradient."""

    def change(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        result.register_hook(lambda gradient: gradient * factor)
        return result

    return lambda run: wrap(run.module(path), change)


def frozen(name: str) -> Plant:
    return lambda run: run.model.get_parameter(name).requires_grad_(False)


def perturbed(*names: str, factor: float = 1.01, part: bool = False) -> Plant:
    """Weights (or buffers) that differ: all elements by a factor, or one element only."""

    def plant(run: Experiment) -> None:
        state = dict(run.model.named_parameters(remove_duplicate=False)) | dict(run.model.named_buffers())
        with torch.no_grad():
            for name in names:
                if name not in state:
                    raise CannotPlant(f"the model has no {name}")
                value = state[name].view(-1)[:1] if part else state[name]
                value.mul_(factor)

    return plant


def transposed(name: str) -> Plant:
    """A square weight that was loaded transposed."""

    def plant(run: Experiment) -> None:
        weight = run.model.get_parameter(name)
        weight.data = weight.data.t().contiguous()

    return plant


def with_batch(change: Callable[[Batch], Batch]) -> Plant:
    """Other data in every step."""

    def plant(run: Experiment) -> None:
        usual = run.batch
        run.batch = lambda step: change(usual(step))

    return plant


def in_bf16(path: str) -> Plant:
    """One module computes in bfloat16; what goes in and out stays float32."""

    def change(forward: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(x.bfloat16(), *args, **kwargs).float()

    def plant(run: Experiment) -> None:
        module = run.module(path)
        module.to(torch.bfloat16)
        wrap(module, change)

    return plant


def weights_cast_to_bf16(path: str) -> Plant:
    """One linear layer multiplies in bfloat16 with float32 master weights."""

    def plant(run: Experiment) -> None:
        layer = run.module(path)
        bias = layer.bias

        def change(forward: Callable[..., Any], x: Tensor) -> Tensor:
            low = None if bias is None else bias.bfloat16()
            return nn.functional.linear(x.bfloat16(), layer.weight.bfloat16(), low).float()

        wrap(layer, change)

    return plant


def without_autocast(path: str) -> Plant:
    def change(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            floats = [one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in args]
            return forward(*floats, **kwargs)

    return lambda run: wrap(run.module(path), change)
