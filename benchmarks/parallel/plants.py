"""The faults of the small GPT: each changes a built model on one rank or on all."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from benchmarks.parallel.collectives import Copy, Group, Reduce, own_part
from benchmarks.parallel.network import HEAD, WIDTH, Block, Gpt, make_weight
from benchmarks.parallel.training import Place

LAYER = "1"
"""The layer that has the fault."""


def plant_in_gpt(model: Gpt, place: Place, other: Optional[Group] = None) -> None:
    """Plants the fault of a run, if it is one of these; `other` is a group of ranks that does not split the tensors."""
    plant = _PLANTS.get(place.fault)
    if plant is not None and LAYER in model.layers:
        plant(model, model.layers[LAYER], place, other)
    elif place.fault in _IN_FIRST_STAGE and model.embedding is not None:
        _IN_FIRST_STAGE[place.fault](model, place)


def _pass_on(x: torch.Tensor, group: Group) -> torch.Tensor:
    return x


def _reduce_twice(x: torch.Tensor, group: Group) -> torch.Tensor:
    return Reduce.apply(Reduce.apply(x, group), group)


class _SplitWithoutSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.shape, ctx.group = x.shape, group
        return own_part(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        from benchmarks.parallel.collectives import join

        return join(grad, ctx.group), None


def _no_forward_reduce(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.down.leave = _pass_on


def _no_attention_reduce(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.attention.out.leave = _pass_on


def _no_backward_reduce(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.up.enter = _pass_on


def _double_reduce(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.down.leave = _reduce_twice


def _double_backward_reduce(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.up.enter = lambda x, group: Copy.apply(Copy.apply(x, group), group)


def _other_group(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    assert other is not None
    block.mlp.down.leave = lambda x, group: Reduce.apply(x, other)


def _no_sum_before_split(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.down.leave = _SplitWithoutSum.apply


def _bias_everywhere(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.mlp.down.bias_on_every_rank = True


def _shifted_shard(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    if place.rank == 1:
        full = make_weight(f"layers.{LAYER}.mlp.up.weight", 4 * WIDTH, WIDTH)
        block.mlp.up.weight.data.copy_(full.roll(1, 0).chunk(model.group.size, 0)[model.group.rank])


def _other_shard(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    """Two ranks have loaded each other's part."""
    full = make_weight(f"layers.{LAYER}.mlp.down.weight", WIDTH, 4 * WIDTH)
    block.mlp.down.weight.data.copy_(full.chunk(model.group.size, 1)[model.group.size - 1 - model.group.rank])


def _queries_first(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    """The fused weight is split as if all queries came first, then keys, then values."""
    full = make_weight(f"layers.{LAYER}.attention.qkv.weight", 3 * WIDTH, WIDTH).view(-1, 3, HEAD, WIDTH)
    wrong = full.permute(1, 0, 2, 3).reshape(3 * WIDTH, WIDTH)
    block.attention.qkv.weight.data.copy_(wrong.chunk(model.group.size, 0)[model.group.rank])


def _stale_norm(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    if place.rank == place.world - 1:
        block.norm2.weight.data.mul_(1.01)


def _dropout_on_one_rank(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    if place.rank == 1:
        block.norm2.register_forward_hook(lambda module, given, result: torch.dropout(result, 0.1, train=True))


def _swapped_layer(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    """The second stage has loaded the weights of the first layer."""
    wrong = Block("layers.0", model.group, model.sequence, None)
    block.mlp.load_state_dict(wrong.mlp.state_dict())


def _other_bias(model: Gpt, block: Block, place: Place, other: Optional[Group]) -> None:
    block.norm2.bias.data.add_(0.01)


_PLANTS: dict[str, Callable[[Gpt, Block, Place, Optional[Group]], None]] = {
    "no_all_reduce": _no_forward_reduce,
    "no_all_reduce_in_attention": _no_attention_reduce,
    "no_all_reduce_in_backward": _no_backward_reduce,
    "reduced_twice": _double_reduce,
    "reduced_twice_in_backward": _double_backward_reduce,
    "reduced_over_another_group": _other_group,
    "split_without_sum": _no_sum_before_split,
    "bias_on_every_rank": _bias_everywhere,
    "shard_shifted": _shifted_shard,
    "shards_swapped": _other_shard,
    "queries_first": _queries_first,
    "norm_of_one_rank": _stale_norm,
    "dropout_on_one_rank": _dropout_on_one_rank,
    "weights_of_another_layer": _swapped_layer,
    "bias_of_norm": _other_bias,
}


def _wrong_offset(model: Gpt, place: Place) -> None:
    if place.rank == 1 and model.embedding is not None:
        model.embedding.offset -= 1


def _rounded_transfer(model: Gpt, place: Place) -> None:
    """What the first stage sends has lost its last bits."""
    model.register_forward_hook(lambda module, given, result: result.to(torch.bfloat16).to(torch.float32))


def _stale_norm_in_first_stage(model: Gpt, place: Place) -> None:
    if place.rank == 1:
        model.layers["0"].norm1.weight.data.mul_(1.01)


_IN_FIRST_STAGE: dict[str, Callable[[Gpt, Place], None]] = {
    "wrong_vocabulary_offset": _wrong_offset,
    "rounded_transfer": _rounded_transfer,
    "norm_of_one_rank_in_stage0": _stale_norm_in_first_stage,
}
