"""Layouts of models from transformers with the parallel APIs of torch: DDP, FSDP2, tensor and sequence parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist
from benchmarks.parallel.network import LENGTH, VOCABULARY, make_weight
from benchmarks.parallel.training import LARGEST_NORM, RATE, Batch, Place, Setup, loss_of, part_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
MLP = "model.layers.1.mlp"


def make_llama(kind: str = "llama") -> nn.Module:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
    )

    shared: dict[str, Any] = {"vocab_size": VOCABULARY, "use_cache": False, "attn_implementation": "eager"}
    if kind == "gpt2":
        quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config: Any = GPT2Config(n_embd=WIDTH, n_layer=2, n_head=4, n_positions=LENGTH, **quiet, **shared)
        model: nn.Module = GPT2LMHeadModel(config)
    else:
        sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
        if kind == "mixtral":
            experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
            model = MixtralForCausalLM(MixtralConfig(**experts, **sizes, **heads, **shared))
        else:
            model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **shared))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(make_weight(name, *parameter.shape))
    return model


def forward_backward(model: nn.Module, batch: Batch, scale: float = 1.0) -> None:
    (loss_of(model(input_ids=batch[0]).logits, batch[1]) * scale).backward()


def single(place: Place, kind: str) -> Setup:
    model = make_llama(kind)
    return Setup(model, partial(forward_backward, model))


def single_for_split(place: Place) -> Setup:
    """Clips as the layouts do whose parameters are on several meshes."""
    model = make_llama()
    return Setup(model, partial(forward_backward, model), clip=partial(clip_mixed, model))


def single_in_parts(place: Place) -> Setup:
    """Each step takes its batch in two parts."""
    model = make_llama()
    return Setup(model, partial(run_parts, model, 0, 1, 0.5))


def run_parts(model: nn.Module, rank: int, world: int, scale: float, batch: Batch) -> None:
    for part in range(2):
        forward_backward(model, part_of(part_of(batch, part, 2), rank, world), scale)


def replicated(place: Place, kind: str = "llama") -> Setup:
    inner = make_llama(kind)
    model = DistributedDataParallel(inner)
    if place.has("weight_of_one_rank", 1):
        inner.get_submodule(MLP).down_proj.weight.data[3].mul_(1.01)
    if place.has("dropout_on_one_rank", 1):
        inner.get_submodule(MLP).register_forward_hook(lambda m, given, result: torch.dropout(result, 0.1, train=True))

    def run(batch: Batch) -> None:
        part = 0 if place.has("same_data_on_every_rank") else place.rank
        own = part_of(batch, part, place.world)
        if place.has("gradient_not_reduced"):
            with model.no_sync():
                forward_backward(model, own)
        else:
            forward_backward(model, own, place.world if place.has("gradient_summed") else 1.0)

    return Setup(model, run, rate=2 * RATE if place.has("rate_of_one_rank", 1) else RATE)


def replicated_with_shares(place: Place) -> Setup:
    """Each rank updates its share of the parameters and sends them to the others."""
    inner = make_llama()
    model = DistributedDataParallel(inner)
    if place.has("weight_of_one_rank", 1):
        inner.get_submodule(MLP).down_proj.weight.data[3].mul_(1.01)
    rate = 2 * RATE if place.has("rate_of_one_rank", 1) else RATE
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=rate)

    def run(batch: Batch) -> None:
        forward_backward(model, part_of(batch, place.rank, place.world))

    return Setup(model, run, optimizer=optimizer)


def replicated_in_parts(place: Place) -> Setup:
    model = DistributedDataParallel(make_llama())

    def run(batch: Batch) -> None:
        scale = 1.0 if place.has("parts_not_scaled") else 0.5
        with model.no_sync():
            forward_backward(model, part_of(part_of(batch, 0, 2), place.rank, place.world), scale)
        forward_backward(model, part_of(part_of(batch, 1, 2), place.rank, place.world), scale)

    return Setup(model, run)


def sharded(place: Place, kind: str = "llama", replicas: int = 1) -> Setup:
    shape = (place.world,) if replicas == 1 else (replicas, place.world // replicas)
    names = ("dp",) if replicas == 1 else ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = make_llama(kind)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    plant_in_shards(model, place)

    def run(batch: Batch) -> None:
        part = 0 if place.has("same_data_on_every_rank") else place.rank
        forward_backward(model, part_of(batch, part, place.world))

    return Setup(model, run, rate=2 * RATE if place.has("rate_of_one_rank", 1) else RATE)


def flattened(place: Place, use_orig_params: bool) -> Setup:
    """FSDP1: each rank has some elements of every parameter."""
    plain = make_llama()
    model = FullyShardedDataParallel(
        plain,
        auto_wrap_policy=ModuleWrapPolicy({type(plain.model.layers[0])}),
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
    )
    if place.has("gradient_summed"):
        model.register_comm_hook(None, lambda state, gradient, out: dist.reduce_scatter_tensor(out, gradient))
    if place.has("gradient_not_reduced"):
        model.register_comm_hook(None, lambda state, grad, out: out.copy_(grad.chunk(place.world)[place.rank]))
    if place.has("shard_of_one_rank", place.world - 1):
        with torch.no_grad():  # the end of the second layer: its last norm, and the down projection before it
            plain.model.layers[1]._handle.flat_param.data[-200:-100].mul_(1.01)

    def run(batch: Batch) -> None:
        part = 0 if place.has("same_data_on_every_rank") else place.rank
        forward_backward(model, part_of(batch, part, place.world))

    rate = 2 * RATE if place.has("rate_of_one_rank", 1) else RATE
    return Setup(model, run, clip=lambda: model.clip_grad_norm_(LARGEST_NORM) and None, rate=rate)


@torch.no_grad()
def plant_in_shards(model: nn.Module, place: Place) -> None:
    if place.has("gradient_summed"):
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces
    if place.has("shard_of_one_rank", place.world - 1):
        model.get_submodule(MLP).down_proj.weight.to_local()[2].mul_(1.01)


def split_llama(model: nn.Module, mesh: Any) -> None:
    plan = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for layer in model.model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh, plan)


def tensor(place: Place) -> Setup:
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("tp",))
    model = make_llama()
    split_llama(model, mesh)
    plant_in_split(model, place, mesh)
    return Setup(model, partial(forward_backward, model), clip=partial(clip_mixed, model))


def clip_mixed(model: nn.Module) -> None:
    """torch clips parameters of one mesh at a time: the norm of split and of plain parameters is put together here."""
    norms = [torch.nn.utils.get_total_norm([one.grad]) for one in model.parameters() if one.grad is not None]
    full = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    total = torch.stack(full).norm()
    factor = (0.5 / (total + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * factor.item()


@torch.no_grad()
def plant_in_split(model: nn.Module, place: Place, mesh: Any) -> None:
    mlp = model.get_submodule(MLP)
    last = place.world - 1
    if place.has("shard_shifted", last):
        local = mlp.up_proj.weight.to_local()
        local.copy_(local.roll(1, 0))
    if place.has("norm_of_one_rank", last):
        model.get_submodule("model.layers.1.post_attention_layernorm").weight.data.mul_(1.01)
    if place.has("reduced_twice"):
        mlp.down_proj.register_forward_hook(lambda m, given, result: _all_reduce(result, mesh))
    if place.has("positions_off_on_one_rank", last):
        rotary = model.model.rotary_emb
        plain = rotary.forward
        rotary.forward = lambda x, position_ids: plain(x, position_ids + 1)
    if place.has("result_of_one_rank", last):
        mlp.act_fn.register_forward_hook(lambda m, given, result: result * 1.01)


def _all_reduce(x: torch.Tensor, mesh: Any) -> torch.Tensor:
    import torch.distributed.nn.functional as differentiable

    return differentiable.all_reduce(x.clone(), group=mesh.get_group("tp"))


def sharded_and_split(place: Place) -> Setup:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = make_llama()
    split_llama(model, mesh["tp"])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    plant_in_shards(model, place)
    plant_in_split(model, place, mesh["tp"])
    data = mesh["dp"].get_local_rank()
    return Setup(model, lambda batch: forward_backward(model, part_of(batch, data, 2)), clip=partial(clip_mixed, model))


class Stream(nn.Module):
    """Blocks of norm, up and down projection on a residual stream: what sequence parallelism of torch splits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(WIDTH),
                    "up": nn.Linear(WIDTH, 64),
                    "act": nn.GELU(),
                    "down": nn.Linear(64, WIDTH),
                }
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                parameter.data.copy_(make_weight(name, *parameter.shape))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer["down"](layer["act"](layer["up"](layer["norm"](x))))
        return self.head(self.norm(x))


def single_stream(place: Place) -> Setup:
    model = Stream()
    return Setup(model, lambda batch: loss_of(model(batch[0]), batch[1]).backward(), clip=partial(clip_mixed, model))


def sequence(place: Place) -> Setup:
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("tp",))
    model = Stream()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for place_of in range(2):
        plan[f"layers.{place_of}.norm"] = SequenceParallel()
        plan[f"layers.{place_of}.up"] = ColwiseParallel(input_layouts=Shard(1))
        plan[f"layers.{place_of}.down"] = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    parallelize_module(model, mesh, plan)
    if place.has("norm_of_one_rank", 1):
        model.layers[1]["norm"].weight.data.to_local().mul_(1.01)
    if place.has("result_of_one_rank", 1):
        model.layers[1]["act"].register_forward_hook(lambda m, given, result: result * 1.01)
    return Setup(model, lambda batch: loss_of(model(batch[0]), batch[1]).backward(), clip=partial(clip_mixed, model))


LAYOUTS: dict[str, tuple[int, str, Callable[[Place], Setup]]] = {
    "ddp2": (2, "llama", replicated),
    "ddp4_gpt2": (4, "gpt2", partial(replicated, kind="gpt2")),
    "ddp2_mixtral": (2, "mixtral", partial(replicated, kind="mixtral")),
    "ddp2_shares": (2, "llama", replicated_with_shares),
    "ddp2_in_parts": (2, "llama_in_parts", replicated_in_parts),
    "fsdp2": (2, "llama", sharded),
    "fsdp1": (2, "llama", partial(flattened, use_orig_params=False)),
    "fsdp1_original": (2, "llama", partial(flattened, use_orig_params=True)),
    "hsdp4": (4, "llama", partial(sharded, replicas=2)),
    "tp2": (2, "llama_split", tensor),
    "sp2": (2, "stream", sequence),
    "fsdp2_tp2": (4, "llama_split", sharded_and_split),
}
SINGLE: dict[str, Callable[[Place], Setup]] = {
    "llama": partial(single, kind="llama"),
    "llama_split": single_for_split,
    "gpt2": partial(single, kind="gpt2"),
    "mixtral": partial(single, kind="mixtral"),
    "llama_in_parts": single_in_parts,
    "stream": single_stream,
}
