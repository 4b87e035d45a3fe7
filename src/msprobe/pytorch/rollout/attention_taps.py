"""Attention of compiled models: module hooks see nothing inside a compiled region, but attention runs outside of it.

Each attention layer of vLLM calls `impl.forward` in Python, compiled or not. A tap is a module in that place: it gets
the query, key and value, and returns the output, so that the ordinary hooks record it.
"""

from __future__ import annotations

from typing import Any

import torch

from msprobe.collect import notices

NAME = "msprobe_attention"


class AttentionTap(torch.nn.Module):
    """Calls the implementation of one attention layer. It has no parameters."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self._original = original
        self._rest: Any = None

    def call(self, layer: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._rest = (layer, args, kwargs)
        return self(query, key, value)

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        layer, args, kwargs = self._rest
        self._rest = None
        result = self._original(layer, query, key, value, *args, **kwargs)
        return kwargs.get("output") if result is None else result


def tap_attention(model: Any, runner: Any) -> None:
    """Puts a tap into every attention layer, if the model is compiled."""
    compilation = getattr(getattr(runner, "vllm_config", None), "compilation_config", None)
    mode = getattr(compilation, "mode", None)
    if not mode:
        return
    tapped = 0
    for module in list(model.modules()):
        implementation = getattr(module, "impl", None)
        if implementation is None or not hasattr(module, "layer_name") or hasattr(module, NAME):
            continue
        tap = AttentionTap(implementation.forward)
        module.add_module(NAME, tap)
        implementation.forward = tap.call
        tapped += 1
    notices.warn_once(
        f"the model is compiled: msprobe sees the attention of {tapped} layers and the logits, but no other module. "
        "Start vLLM with enforce_eager=True to see all."
    )
