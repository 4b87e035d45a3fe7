"""Parameters that are parts of larger ones: DTensors, flat parameters of FSDP1, parameters with Megatron's
attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from msprobe.pytorch.parallel import flat_parameters, megatron
from msprobe.pytorch.parallel.layouts import Layouts

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?:\.|$)")


def parameter_layouts(models: Sequence[Any], layouts: Layouts) -> dict[str, dict[str, Any]]:
    """The layout of every such parameter, by its name in the model; with several models, the number of the model
    comes first."""
    found: dict[str, dict[str, Any]] = {}
    for start, model in _numbered(models):
        named = dict(model.named_modules())
        paths = {id(module): path for path, module in named.items()}
        for module, handle in flat_parameters.handles(named.values()):
            path = paths[id(module)]
            described = _describe_flat(path, handle)
            if described is not None:
                found[f"{start}{path}{'.' if path else ''}_fsdp_wrapped_module.{flat_parameters.FLAT}"] = described
        for path, module in named.items():
            prefix = f"{start}{path}." if path else start
            for name, parameter in module._parameters.items():
                spec = getattr(parameter, "_spec", None)
                described = (
                    layouts.describe(spec) if spec is not None else megatron.describe(module, parameter, layouts)
                )
                if described is not None:
                    found[f"{prefix}{name}"] = described
    return found


def paths_in_complete_model(models: Sequence[Any]) -> dict[str, str]:
    """The paths in the complete model. Megatron counts the layers of a pipeline stage from 0 and has their number in
    the complete model in an attribute."""
    found = {}
    for start, model in _numbered(models):
        for path, module in model.named_modules():
            number, (above, _, last) = getattr(module, "layer_number", None), path.rpartition(".")
            if last.isdigit() and isinstance(number, int) and 0 < number != int(last) + 1:
                found[f"{start}{path}"] = f"{above}.{number - 1}" if above else str(number - 1)
    return found


def _numbered(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        yield f"{index}." if len(models) > 1 else "", model


def _describe_flat(path: str, handle: Any) -> Optional[dict[str, Any]]:
    """A flat parameter of FSDP1: this rank's elements of each parameter in it. None where the parameters are complete
    on every rank and registered as they are."""
    if not handle.uses_sharded_strategy and handle._use_orig_params:
        return None
    flat = handle.flat_param
    above = _WRAPPERS.sub("", f"{path}." if path else "")
    names = [f"{above}{_WRAPPERS.sub('', name)}" for name in flat._fqns]
    parts = []
    for name, shape, info in zip(names, flat._shapes, flat._shard_param_infos):
        if info.in_shard:
            first, last = int(info.intra_param_start_idx), int(info.intra_param_end_idx) + 1
            parts.append([name, [int(size) for size in shape], first, last])
    found: dict[str, Any] = {"flat": True, "parts": parts}
    first_names = {(id(module), name): full for (name, module, _), full in zip(flat._param_infos, names)}
    shared = {}
    for name, _, place, first_name, first_module, _ in flat._shared_param_infos:
        full = f"{above}{_WRAPPERS.sub('', f'{place}.{name}' if place else name)}"
        shared[full] = first_names[id(first_module), first_name]
    return {**found, "shared": shared} if shared else found
