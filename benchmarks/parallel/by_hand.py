"""Layouts of the small GPT that are written by hand: tensor, sequence, data, pipeline and context parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist
from benchmarks.parallel import plants
from benchmarks.parallel.collectives import ALONE, GatherSequence, Group, join
from benchmarks.parallel.network import LAYERS, LENGTH, Gpt, make_weight
from benchmarks.parallel.training import (
    BATCH,
    RATE,
    Batch,
    Place,
    Setup,
    average_gradients,
    clip_by_hand,
    loss_of,
    part_of,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.distributed.tensor.experimental import context_parallel

MICROBATCHES = 4
DEEP = 4


def is_split(name: str) -> bool:
    """Whether tensor parallelism splits a parameter."""
    return "qkv" in name or ".up." in name or name.endswith(("out.weight", "down.weight", "embedding.weight"))


def group_of(mesh: Any, dimension: str) -> Group:
    part = mesh[dimension]
    return Group(part.get_group(), part.get_local_rank(), part.size())


def forward_backward(model: torch.nn.Module, batch: Batch) -> None:
    loss_of(model(batch[0]), batch[1]).backward()


def single(place: Place) -> Setup:
    model = Gpt()
    return Setup(model, partial(forward_backward, model), clip=lambda: clip_by_hand(model))


def tensor(place: Place, sequence: bool = False, marked: bool = False) -> Setup:
    """`marked`: the parameters carry Megatron's attributes."""
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("tp",))
    group = group_of(mesh, "tp")
    model = Gpt(group, sequence)
    for name, parameter in model.named_parameters() if marked else ():
        parameter.tensor_model_parallel = is_split(name)  # type: ignore[attr-defined]
        parameter.partition_dim = int(name.endswith(("out.weight", "down.weight"))) if is_split(name) else -1  # type: ignore[attr-defined]
        parameter.partition_stride = 1  # type: ignore[attr-defined]
    plants.plant_in_gpt(model, place)
    split = [] if place.has("clip_with_local_norm") else [(group, is_split)]

    def reduce() -> None:
        for name, parameter in model.named_parameters():
            on_part = "norm" in name or name.endswith(("out.bias", "down.bias"))
            if sequence and on_part and not (place.has("norm_gradient_not_reduced") and "layers.1.norm2" in name):
                dist.all_reduce(parameter.grad, group=group.ranks)

    rate = 2 * RATE if place.has("rate_of_one_rank", 1) else RATE
    setup = Setup(model, partial(forward_backward, model), reduce, lambda: clip_by_hand(model, split), rate)
    setup.left_out = "head.weight" if place.has("head_not_updated") or place.has("head_not_updated_on_one", 1) else ""
    return setup


def data_and_tensor(place: Place) -> Setup:
    mesh = init_device_mesh("cpu", (2, place.world // 2), mesh_dim_names=("dp", "tp"))
    data, group = group_of(mesh, "dp"), group_of(mesh, "tp")
    model = Gpt(group)
    plants.plant_in_gpt(model, place, data)
    divisor = {"gradient_summed": 1, "divided_by_world": place.world}.get(place.fault)

    def run(batch: Batch) -> None:
        part = 0 if place.has("same_data_on_every_rank") else data.rank
        forward_backward(model, part_of(batch, part, data.size))

    def reduce() -> None:
        if not place.has("gradient_not_reduced"):
            average_gradients(model, data, divisor)

    return Setup(model, run, reduce, lambda: clip_by_hand(model, [(group, is_split)]))


def pipeline(place: Place, schedule: str = "gpipe", tensor_size: int = 1, tied: bool = False) -> Setup:
    """Two stages; the second has the last layer, the norm and the head."""
    mesh = init_device_mesh("cpu", (2, tensor_size), mesh_dim_names=("pp", "tp"))
    stages, group = group_of(mesh, "pp"), group_of(mesh, "tp")
    group = group if tensor_size > 1 else ALONE
    first, last = (0, 1) if stages.rank == 0 else (1, LAYERS)
    model = Gpt(group, first=first, last=last)
    if tied and model.head is not None:
        model.head.weight.data.copy_(make_weight("embedding.weight", *model.head.weight.shape))
    plants.plant_in_gpt(model, place, stages)
    stage = PipelineStage(model, stages.rank, 2, torch.device("cpu"), group=stages.ranks)
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    scale = not place.has("microbatches_not_scaled")
    runner = kind(stage, MICROBATCHES, loss_fn=loss_of, scale_grads=scale)

    def run(batch: Batch) -> None:
        if stages.rank == 0:
            runner.step(batch[0])
        else:
            runner.step(target=batch[1])

    def reduce() -> None:
        if tied and not place.has("tied_weights_not_summed"):
            weight = model.embedding.weight if model.embedding is not None else model.head.weight  # type: ignore[union-attr]
            dist.all_reduce(weight.grad, group=stages.ranks)

    def clip() -> None:
        splits = [] if tensor_size == 1 else [(group, is_split)]
        clip_by_hand(model, splits, stages, "head.weight" if tied else "")

    return Setup(model, run, reduce, clip, left_out="norm.bias" if place.has("norm_not_updated") else "")


def interleaved(place: Place, schedule: Any) -> Setup:
    """Four stages of one layer on two ranks: rank 0 has the first and the third."""
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("pp",))
    stages = group_of(mesh, "pp")
    own = [number for number in range(DEEP) if number % place.world == place.rank]
    chunks = [Gpt(first=number, last=number + 1, layers=DEEP) for number in own]
    for chunk in chunks:
        plants.plant_in_gpt(chunk, place, stages)
    made = [
        PipelineStage(chunk, number, DEEP, torch.device("cpu"), group=stages.ranks)
        for chunk, number in zip(chunks, own)
    ]
    scale = not place.has("microbatches_not_scaled")
    runner = schedule(made, MICROBATCHES, loss_fn=loss_of, scale_grads=scale)
    model = torch.nn.ModuleList(chunks)

    def run(batch: Batch) -> None:
        given = (batch[0],) if place.rank == 0 else ()
        runner.step(*given, **({"target": batch[1]} if DEEP - 1 in own else {}))

    return Setup(model, run, clip=lambda: clip_by_hand(model, (), stages), stages=chunks)


def single_deep(place: Place) -> Setup:
    model = Gpt(last=DEEP, layers=DEEP)
    return Setup(model, partial(forward_backward, model), clip=lambda: clip_by_hand(model))


def single_tied(place: Place) -> Setup:
    """The head has the weight of the embedding."""
    model = Gpt()
    assert model.embedding is not None
    assert model.head is not None
    model.head.weight = model.embedding.weight
    return Setup(model, partial(forward_backward, model), clip=lambda: clip_by_hand(model))


def context(place: Place) -> Setup:
    """Each rank has a part of every sequence, in the order that torch chooses to balance causal attention."""
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("cp",))
    group = group_of(mesh, "cp")

    def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
        if place.has("gather_without_gradient") and x.requires_grad:
            parts = join(x.detach(), group, dim).chunk(group.size, dim)
            return torch.cat([x if rank == group.rank else part for rank, part in enumerate(parts)], dim)
        joined = GatherSequence.apply(x, group, dim)
        if place.has("keys_in_another_order") and dim == 2:
            joined = torch.cat(joined.chunk(group.size, dim)[::-1], dim)
        return joined

    model = Gpt(gather=gather)
    plants.plant_in_gpt(model, place)

    def run(batch: Batch) -> None:
        ids, labels = (tensor.clone() for tensor in batch)
        positions = torch.arange(LENGTH).expand(BATCH, -1).clone()
        ordered = positions.clone()
        buffers = [ids, labels, positions]
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
            if place.has("positions_not_balanced"):
                positions.copy_(ordered.chunk(group.size, 1)[group.rank])
            if place.has("positions_off_on_one_rank", 1):
                positions.add_(1).clamp_(max=LENGTH - 1)
            loss_of(model(ids, positions), labels).backward()

    divisor = 1 if place.has("gradient_summed") else None
    return Setup(model, run, lambda: average_gradients(model, group, divisor), lambda: clip_by_hand(model))


LAYOUTS: dict[str, tuple[int, str, Callable[[Place], Setup]]] = {
    "tensor2": (2, "gpt", tensor),
    "tensor4": (4, "gpt", tensor),
    "sequence2": (2, "gpt", partial(tensor, sequence=True)),
    "data2_tensor2": (4, "gpt", data_and_tensor),
    "data2_tensor4": (8, "gpt", data_and_tensor),
    "pipeline2": (2, "gpt", pipeline),
    "pipeline2_1f1b": (2, "gpt", partial(pipeline, schedule="1f1b")),
    "pipeline2_tied": (2, "gpt_tied", partial(pipeline, tied=True)),
    "pipeline2_tensor2": (4, "gpt", partial(pipeline, tensor_size=2)),
    "pipeline2_interleaved": (2, "gpt_deep", partial(interleaved, schedule=ScheduleInterleaved1F1B)),
    "pipeline2_breadth_first": (2, "gpt_deep", partial(interleaved, schedule=ScheduleLoopedBFS)),
    "pipeline2_zero_bubble": (2, "gpt_deep", partial(interleaved, schedule=ScheduleInterleavedZeroBubble)),
    "tensor2_marked": (2, "gpt", partial(tensor, marked=True)),
    "context2": (2, "gpt", context),
}
SINGLE: dict[str, Callable[[Place], Setup]] = {"gpt": single, "gpt_tied": single_tied, "gpt_deep": single_deep}
