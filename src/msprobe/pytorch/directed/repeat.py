"""Runs one call again, many times, where the script makes it: does it always return the same bytes?

The inputs are those of the script; what the call writes is copied first. The random state is that of the first run,
and is restored afterwards, so that the script continues as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tasks.perturb import map_leaves

Act = Callable[[], Any]


def random_states() -> tuple[Any, ...]:
    accelerator = [torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    return (random.getstate(), np.random.get_state(), torch.get_rng_state(), *accelerator)


def set_random_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if len(states) > 3:
        torch.cuda.set_rng_state_all(states[3])


def copy_arguments(values: Any) -> Any:
    """The arguments with copies of all tensors, as leaves of no graph."""
    return map_leaves(values, lambda one: one.detach().clone() if isinstance(one, torch.Tensor) else one)


def digest(value: Any) -> str:
    """A checksum of all tensors in a value: dtype, shape and bytes."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors_in(value, []):
        plain = tensor.detach().cpu().contiguous()
        found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        found.update(plain.flatten().view(torch.uint8).numpy() if plain.numel() else b"")
    return found.hexdigest()


def repeat(
    call: Callable[..., Any], values: Any, states: tuple[Any, ...], times: int, backward: bool
) -> dict[str, Any]:
    """Repeats a call: as it is, with one thread, and with deterministic algorithms. Returns the number of results."""
    after = random_states()

    def once() -> str:
        set_random_states(states)
        args, kwargs = copy_arguments(values)
        if not backward:
            with torch.no_grad():
                return digest(call(*args, **kwargs))
        return digest(_gradients(call, args, kwargs, values))

    try:
        found: dict[str, Any] = {"times": times, "results": len({once() for _ in range(times)})}
        found["threads"] = torch.get_num_threads()
        if found["results"] > 1:
            with _one_thread():
                found["results_with_one_thread"] = len({once() for _ in range(times)})
            with _deterministic():
                try:
                    found["results_when_deterministic"] = len({once() for _ in range(times)})
                except RuntimeError as error:  # torch has no deterministic version of this operator
                    found["not_deterministic"] = str(error).splitlines()[0]
    finally:
        set_random_states(after)
    return found


def _gradients(call: Callable[..., Any], args: Any, kwargs: Any, values: Any) -> list[Any]:
    """The gradients of a call for a fixed incoming gradient."""
    flags = iter([one.requires_grad for one in tensors_in(values, [])])
    leaves = [one for one in tensors_in((args, kwargs), []) if next(flags, False)]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.enable_grad():
        # A call that writes its first argument may not write a leaf.
        args, kwargs = map_leaves((args, kwargs), lambda one: one.view_as(one) if _is_leaf(one) else one)
        outputs = [one for one in tensors_in(call(*args, **kwargs), []) if one.requires_grad]
    if not leaves or not outputs:
        return []
    generator = torch.Generator().manual_seed(0)
    incoming = [torch.randn(one.shape, generator=generator).to(one) for one in outputs]
    return [one for one in torch.autograd.grad(outputs, leaves, incoming, allow_unused=True) if one is not None]


def keep_results(module: Any, values: Any, states: tuple[Any, ...], directory: str) -> list[str]:
    """Saves each float result of a module as `own{n}.npy`, and with all values in float64 as `wide{n}.npy`.
    Returns their dtypes; none if the module does not run in float64."""
    after = random_states()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = _run_module(module, values, states, lambda one: one.clone())
            try:
                wide = _run_module(module, values, states, lambda one: _widen(one.clone()))
            except (RuntimeError, TypeError):
                return []
    finally:
        set_random_states(after)
    for number, (one, other) in enumerate(zip(own, wide)):
        for title, tensor in (("own", one), ("wide", other)):
            np.save(Path(directory) / f"{title}{number}.npy", tensor.detach().double().cpu().numpy())
    return [str(one.dtype).partition(".")[2] for one in own]


def _run_module(module: Any, values: Any, states: tuple[Any, ...], change: Callable[[Any], Any]) -> list[Any]:
    """The float results of a module with changed copies of its inputs, parameters and buffers."""
    set_random_states(states)
    args, kwargs = map_leaves(values, lambda one: change(one) if isinstance(one, torch.Tensor) else one)
    named = (*module.named_parameters(), *module.named_buffers())
    found = torch.func.functional_call(module, {name: change(one.detach()) for name, one in named}, args, kwargs)
    return [one for one in tensors_in(found, []) if one.is_floating_point()]


def _widen(tensor: Any) -> Any:
    return tensor.double() if tensor.is_floating_point() else tensor


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
