"""Expert parallelism: each rank has some of the experts, and tokens travel to them and back through all_to_all."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.parallel.collectives import ALONE, Group
from benchmarks.parallel.network import VOCABULARY, WIDTH, make_weight
from benchmarks.parallel.training import Batch, Place, Setup, clip_by_hand, loss_of, part_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

EXPERTS = 4


class Exchange(torch.autograd.Function):
    """all_to_all_single; the backward sends the gradients the same way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], group: Group) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _exchange(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(x: torch.Tensor, sent: list[int], received: list[int], group: Group) -> torch.Tensor:
    result = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(result, x.contiguous(), received, sent, group=group.ranks)
    return result


class Expert(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        for part, parameter in self.named_parameters():
            parameter.data.copy_(make_weight(f"{name}.{part}", *parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """One expert per token. `experts` keeps the numbers of the complete model."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__()
        self.group = group
        own = EXPERTS // group.size
        self.first = group.rank * own
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.router.weight.data.copy_(make_weight(f"{name}.router", EXPERTS, WIDTH))
        self.experts = nn.ModuleDict(
            {str(i): Expert(f"{name}.experts.{i}") for i in range(self.first, self.first + own)}
        )
        self.swaps_tokens = False
        self.loses_token = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weight, chosen = torch.softmax(self.router(tokens), -1).max(-1)
        order = torch.argsort(chosen, stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        arrived, kinds, splits = self._send(tokens[order], counts)
        done = torch.zeros_like(arrived)
        for name, expert in self.experts.items():
            places = (kinds == int(name)).nonzero().flatten()
            done = done.index_copy(0, places, expert(arrived[places]))
        if self.loses_token:
            done = done.index_fill(0, torch.tensor([0]), 0.0)
        back = self._return(done, splits)
        if self.swaps_tokens:
            back = back.roll(1, 0)
        result = torch.zeros_like(tokens).index_copy(0, order, back)
        return (result * weight.unsqueeze(-1)).view_as(x)

    def _send(self, tokens: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The tokens for this rank's experts, the expert of each, and how many came from and went to each rank."""
        if self.group.size == 1:
            return tokens, torch.repeat_interleave(torch.arange(EXPERTS), counts), None
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group.ranks)
        sent = counts.view(self.group.size, -1).sum(1).tolist()
        received = theirs.view(self.group.size, -1).sum(1).tolist()
        own = torch.arange(self.first, self.first + len(self.experts)).repeat(self.group.size)
        kinds = torch.repeat_interleave(own, theirs)
        return Exchange.apply(tokens, sent, received, self.group), kinds, (sent, received)

    def _return(self, done: torch.Tensor, splits: Any) -> torch.Tensor:
        if splits is None:
            return done
        sent, received = splits
        return Exchange.apply(done, received, sent, self.group)


class Mixture(nn.Module):
    def __init__(self, group: Group = ALONE) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.embedding.weight.data.copy_(make_weight("embedding.weight", VOCABULARY, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Experts(f"layers.{i}", group) for i in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight.data.copy_(make_weight("head.weight", VOCABULARY, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)


def is_expert(name: str) -> bool:
    return ".experts." in name


def single(place: Place) -> Setup:
    model = Mixture()
    return Setup(model, lambda batch: loss_of(model(batch[0]), batch[1]).backward(), clip=lambda: clip_by_hand(model))


def parallel(place: Place) -> Setup:
    """Each rank has a part of the batch and of the experts."""
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("ep",))
    group = Group(mesh.get_group(), mesh.get_local_rank(), mesh.size())
    model = Mixture(group)
    layer = model.layers[1]
    layer.swaps_tokens = place.has("tokens_swapped", 1)
    layer.loses_token = place.has("token_lost", 1)
    if place.has("expert_of_another", 1):
        layer.experts["3"].load_state_dict(layer.experts["2"].state_dict())

    def run(batch: Batch) -> None:
        loss_of(*_swapped(model, part_of(batch, place.rank, place.world))).backward()

    def reduce() -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if not is_expert(name):
                dist.all_reduce(parameter.grad, group=group.ranks)
            if not (place.has("expert_gradient_summed") and is_expert(name)):
                parameter.grad.div_(group.size)

    return Setup(model, run, reduce, partial(clip_by_hand, model, [(group, is_expert)]))


def _swapped(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return model(batch[0]), batch[1]


LAYOUTS: dict[str, tuple[int, str, Callable[[Place], Setup]]] = {"experts2": (2, "mixture", parallel)}
SINGLE: dict[str, Callable[[Place], Setup]] = {"mixture": single}
