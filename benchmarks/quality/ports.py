"""Other implementations of the same computation: plants of clean pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from architectures import Batch
from edits import replace, wrap
from torch import Tensor, nn
from training import Experiment, Plant


def hand_written_norm(*paths: str) -> Plant:
    """LayerNorm from its formula instead of the fused call."""

    def plant(run: Experiment) -> None:
        for path in paths:
            wrap(run.module(path), _formula(run.module(path)))

    def _formula(norm: nn.Module) -> Callable[..., Tensor]:
        def formula(forward: Any, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.pow(2).mean(-1, keepdim=True)
            return centred * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias

        return formula

    return plant


def fused_rms_norm(path: str) -> Plant:
    """RMSNorm by the fused call instead of its formula."""

    def plant(run: Experiment) -> None:
        norm = run.module(path)
        wrap(norm, lambda forward, x: F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon))

    return plant


def computed_by(path: str, function: Callable[[Tensor], Tensor]) -> Plant:
    """A module computes its result in another way."""
    return lambda run: wrap(run.module(path), lambda forward, x: function(x))


def silu_by_hand(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def gelu_fused(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def matrix_product(path: str) -> Plant:
    """A GPT-2 projection as a product and a sum instead of addmm."""

    def plant(run: Experiment) -> None:
        layer = run.module(path)
        wrap(layer, lambda forward, x: x @ layer.weight + layer.bias)

    return plant


def identity_calls(path: str, function: Callable[[Tensor], Tensor]) -> Plant:
    """A call that changes nothing after a module."""
    return lambda run: wrap(run.module(path), lambda forward, *args, **kwargs: function(forward(*args, **kwargs)))


class FusedGate(nn.Module):
    """Llama's MLP with one projection for gate and up."""

    def __init__(self, usual: nn.Module) -> None:
        super().__init__()
        gate, up = usual.gate_proj.weight, usual.up_proj.weight
        self.gate_up_proj = nn.Linear(gate.shape[1], 2 * gate.shape[0], bias=False)
        self.gate_up_proj.weight = nn.Parameter(torch.cat([gate, up]).detach().clone())
        self.down_proj = usual.down_proj
        self.act_fn = usual.act_fn

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)


def fused_gate(*paths: str) -> Plant:
    def plant(run: Experiment) -> None:
        for path in paths:
            replace(run.model, path, FusedGate(run.module(path)))

    return plant


class FusedBlock(nn.Module):
    """ViT's attention with one projection for query, key and value."""

    def __init__(self, usual: nn.Module) -> None:
        super().__init__()
        parts = [usual.q_proj, usual.k_proj, usual.v_proj]
        width = parts[0].weight.shape[1]
        self.heads, self.scaling = usual.num_attention_heads, usual.scaling
        self.qkv = nn.Linear(width, 3 * width)
        self.qkv.weight = nn.Parameter(torch.cat([part.weight for part in parts]).detach().clone())
        self.qkv.bias = nn.Parameter(torch.cat([part.bias for part in parts]).detach().clone())
        self.o_proj = usual.o_proj

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **_: Any) -> tuple[Tensor, None]:
        batch, length, width = hidden_states.shape
        states = self.qkv(hidden_states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = states.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scaling)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width)), None


def fused_attention(*paths: str) -> Plant:
    def plant(run: Experiment) -> None:
        for path in paths:
            replace(run.model, path, FusedBlock(run.module(path)))

    return plant


def checkpointed(run: Experiment) -> None:
    run.model.gradient_checkpointing_enable()


def dirty_memory(run: Experiment) -> None:
    """Freed memory is full of other numbers, so that uninitialised tensors differ from those of the other run."""
    sizes = (8, 20, 40, 64, 80, 160, 320, 640, 1280, 2560)
    junk = [torch.full((size,), 1234567 + size, dtype=torch.int64) for size in sizes for _ in range(40)]
    junk += [torch.full((size,), float(size), dtype=torch.float32) for size in sizes for _ in range(40)]
    del junk


def without(key: str) -> Plant:
    """The batch without a key."""

    def plant(run: Experiment) -> None:
        usual = run.batch
        run.batch = lambda step: {name: value for name, value in usual(step).items() if name != key}

    return plant


def with_ones(key: str) -> Plant:
    """The batch with a mask that masks nothing."""

    def plant(run: Experiment) -> None:
        usual = run.batch

        def masked(step: int) -> Batch:
            batch = usual(step)
            return {**batch, key: torch.ones_like(batch["input_ids"])}

        run.batch = masked

    return plant


def with_flag(**flags: Any) -> Plant:
    """The model is called with a flag that changes no number."""

    def plant(run: Experiment) -> None:
        run.loss = lambda model, batch: model(**batch, **flags).loss

    return plant


def loss_by_hand(run: Experiment) -> None:
    """Cross entropy as log_softmax and nll_loss."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.nll_loss(F.log_softmax(model(batch["pixels"]), dim=-1), batch["labels"])

    run.loss = loss
