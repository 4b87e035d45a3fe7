"""Parameters that are parts of larger ones: DTensors, flat parameters of FSDP1, parameters with Megatron's
attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msprobe.pytorch.parallel import megatron
from msprobe.pytorch.parallel.layouts import Layouts

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)(?:\.|$)")


def parameter_layouts(models: Sequence[Any], layouts: Layouts) -> dict[str, dict[str, Any]]:
    """The layout of every such parameter, by its name in the model; with several models, the number of the model
    comes first."""
    found: dict[str, dict[str, Any]] = {}
    for start, model in _numbered(models):
        for path, module in model.named_modules():
            prefix = f"{start}{path}." if path else start
            for name, parameter in module._parameters.items():
                spec = getattr(parameter, "_spec", None)
                described = (
                    layouts.describe(spec) if spec is not None else megatron.describe(module, parameter, layouts)
                )
                if described is not None:
                    found[f"{prefix}{name}"] = described
            handle: Any = getattr(module, "_handle", None)
            if getattr(handle, "uses_sharded_strategy", False):
                parts = list(_flat_parts(path, handle.flat_param))
                found[f"{prefix}_fsdp_wrapped_module._flat_param"] = {"flat": True, "parts": parts}
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


def _flat_parts(path: str, flat: Any) -> Iterator[list[Any]]:
    """The elements of each parameter in an FSDP1 flat parameter on this rank."""
    above = _WRAPPERS.sub("", f"{path}." if path else "")
    for name, shape, info in zip(flat._fqns, flat._shapes, flat._shard_param_infos):
        if info.in_shard:
            yield [
                f"{above}{_WRAPPERS.sub('', name)}",
                [int(size) for size in shape],
                int(info.intra_param_start_idx),
                int(info.intra_param_end_idx) + 1,
            ]
