"""The cases: clean layouts, and faults with the answer that is right for each."""

from __future__ import annotations

from dataclasses import dataclass

CLEAN = "clean"
REDUCTION, SLICING, REPLICA, SCALING, DATA, TRAINING = (
    "reduction", "shard", "replica", "scaling of gradients", "data and order", "training loop",
)  # fmt: skip
KINDS = (REDUCTION, SLICING, REPLICA, SCALING, DATA, TRAINING, CLEAN)


@dataclass(frozen=True)
class Case:
    """A layout with a fault (none: clean) and the right answer.

    `where` is a pattern for the call or its module; `named` one for the kind and the sentence; `ranks` are those that
    have the fault (empty: all ranks have it, so any may be named); `steps` is how many steps are recorded;
    `golden` is the layout that it is compared with (empty: one device).
    """

    layout: str
    fault: str = ""
    kind: str = CLEAN
    where: str = ""
    named: str = ""
    ranks: tuple[int, ...] = ()
    steps: int = 1
    golden: str = ""

    @property
    def id(self) -> str:
        return f"{self.layout}/{self.fault or CLEAN}" + (f" against {self.golden}" if self.golden else "")


_NORM2 = r"layers\.1\.norm2"
_UP, _DOWN = r"layers\.1\.mlp(\.up)?\b", r"layers\.1\.mlp(\.down)?\b"
_OUT, _QKV = r"layers\.1\.attention(\.out)?\b", r"layers\.1\.attention(\.qkv)?\b"
_LLAMA_DOWN, _LLAMA_UP = r"layers\.1\.mlp(\.down_proj)?\b", r"layers\.1\.mlp(\.up_proj)?\b"
_UPDATE = r"optim|AdamW|Tensor\.(mul_?|lerp_|add_?|addcmul_|addcdiv_|sqrt|square|div_|sum)|_foreach_|_norm|stack"
_GRADIENT = r"grad|all_reduce|reduce_scatter|Tensor\.(div_|square|mul_?)|_norm|_foreach_"
_MISSING = r"missing (all-reduce|reduce)|not (reduced|summed)|partial"
_TWICE = r"twice|once too often|wrong factor"
_SLICED = r"mis-sliced|shard|weight.*differ"
_STALE = r"replica|not synchroni[sz]ed|weight.*differ"
_SUMMED = r"gradient not averaged.*summed, not averaged"
_DIVIDED = r"wrong factor.*divided by \d+ once too often"
_MICROBATCHES = r"wrong microbatch scaling"
_LOSS_SCALE = r"another argument.* is 2|another argument.* is 1"
_NOT_SYNCED = r"not reduced|missing all-reduce|not synchroni[sz]ed|gradient not (averaged|summed)"
_RANDOM = r"random|dropout|extra call"
_RATE = r"AdamW: lr is 0\.02, not 0\.01"
_GIVEN = r"received a different|different argument|returns a different|differs on rank|extra call|mis-sliced|replica"
"""The kind of a call that was given, or gives, something else: which call and rank it is says what to look at."""
_TRANSFER = r"Tensor\.to\b|layers\.1(\.norm1|\.Block)|Gpt"
_FACTOR = r"not averaged|times what it should be"
_OTHER_DATA = r"part of the data|given another input"
_ORDER = rf"order|mis-sliced|{_GIVEN}"

FAULTS = (
    Case("tensor2", "no_all_reduce", REDUCTION, _DOWN, _MISSING),
    Case("tensor4", "no_all_reduce_in_attention", REDUCTION, _OUT, _MISSING),
    Case("tensor2", "no_all_reduce_in_backward", REDUCTION, rf"{_UP}|{_NORM2}", _MISSING),
    Case("tensor2", "reduced_twice", REDUCTION, _DOWN, _TWICE),
    Case("tensor2", "reduced_twice_in_backward", REDUCTION, rf"{_UP}|{_NORM2}", _TWICE),
    Case("tensor2", "bias_on_every_rank", REDUCTION, _DOWN, r"returns a different|received a different|bias"),
    Case("tensor2", "shard_shifted", SLICING, _UP, _SLICED, (1,)),
    Case("tensor4", "shards_swapped", SLICING, _DOWN, _SLICED),
    Case("tensor2", "queries_first", SLICING, _QKV, _SLICED),
    Case("tensor2", "norm_of_one_rank", REPLICA, _NORM2, _STALE, (1,)),
    Case("tensor2", "dropout_on_one_rank", DATA, rf"{_NORM2}|{_UP}|layers\.1\b", _RANDOM, (1,)),
    Case("tensor2", "wrong_vocabulary_offset", SLICING, r"embedding", _GIVEN, (1,)),
    Case("tensor2", "clip_with_local_norm", TRAINING, _UPDATE, r"missing all-reduce|not (summed|reduced)|norm"),
    Case("tensor2", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("tensor2", "head_not_updated", TRAINING, _UPDATE, r"not update head\.weight"),
    Case("tensor2", "head_not_updated_on_one", TRAINING, _UPDATE, r"not update head\.weight", (1,)),
    Case("pipeline2", "norm_not_updated", TRAINING, _UPDATE, r"not update norm\.bias"),
    Case("sequence2", "split_without_sum", REDUCTION, _DOWN, _MISSING),
    Case("sequence2", "norm_gradient_not_reduced", REDUCTION, rf"{_NORM2}|Tensor\.square", _NOT_SYNCED + "|not summed"),
    Case("sequence2", "shard_shifted", SLICING, _UP, _SLICED, (1,)),
    Case("data2_tensor2", "reduced_over_another_group", REDUCTION, _DOWN, r"(wrong|another) group|missing all-reduce"),
    Case("data2_tensor2", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("data2_tensor2", "divided_by_world", SCALING, _GRADIENT, _DIVIDED),
    Case("data2_tensor2", "gradient_not_reduced", SCALING, _GRADIENT, _NOT_SYNCED),
    Case("data2_tensor2", "same_data_on_every_rank", DATA, r"embedding|Gpt", _OTHER_DATA, (2, 3)),
    Case("data2_tensor2", "norm_of_one_rank", REPLICA, _NORM2, _STALE, (3,)),
    Case("pipeline2", "microbatches_not_scaled", SCALING, _GRADIENT, _MICROBATCHES),
    Case("pipeline2", "weights_of_another_layer", SLICING, _UP, r"weight.*differ", (1,)),
    Case("pipeline2", "rounded_transfer", DATA, _TRANSFER, rf"{_GIVEN}|precision", (0, 1)),
    Case("pipeline2_tied", "tied_weights_not_summed", SCALING, r"embedding|head|Tensor\.square", _NOT_SYNCED, (0, 1)),
    Case("pipeline2_tensor2", "no_all_reduce", REDUCTION, _DOWN, _MISSING, (2, 3)),
    Case("pipeline2_tensor2", "norm_of_one_rank_in_stage0", REPLICA, r"layers\.0\.norm1", _STALE, (1,)),
    Case("context2", "positions_not_balanced", DATA, r"positions|Gpt", _ORDER),
    Case("context2", "positions_off_on_one_rank", DATA, r"positions|Gpt", _GIVEN, (1,)),
    Case("context2", "keys_in_another_order", DATA, r"layers\.0\.attention", _ORDER),
    Case("context2", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("context2", "gather_without_gradient", REDUCTION, r"layers\.1\.attention", _NOT_SYNCED),
    Case("experts2", "tokens_swapped", DATA, r"layers\.1\.Experts", _ORDER, (1,)),
    Case("experts2", "token_lost", DATA, r"layers\.1\.Experts", _GIVEN, (1,)),
    Case("experts2", "expert_of_another", SLICING, r"layers\.1\.experts\.3", r"weight.*differ|mis-sliced|shard", (1,)),
    Case("experts2", "expert_gradient_summed", SCALING, rf"experts|{_GRADIENT}", _FACTOR),
    Case("ddp2", "weight_of_one_rank", REPLICA, _LLAMA_DOWN, _STALE, (1,)),
    Case("ddp2", "dropout_on_one_rank", DATA, r"layers\.1\b", _RANDOM, (1,)),
    Case("ddp2", "gradient_not_reduced", SCALING, _GRADIENT, _NOT_SYNCED),
    Case("ddp2", "gradient_summed", SCALING, r"Tensor\.(__)?mul", _LOSS_SCALE),
    Case("ddp2", "same_data_on_every_rank", DATA, r"embed|ForCausalLM", _OTHER_DATA, (1,)),
    Case("ddp2", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("ddp2_shares", "weight_of_one_rank", REPLICA, _LLAMA_DOWN, _STALE, (1,)),
    Case("ddp2_shares", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("ddp2_in_parts", "parts_not_scaled", SCALING, r"Tensor\.(__)?mul", _LOSS_SCALE),
    Case("fsdp2", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("fsdp2", "shard_of_one_rank", SLICING, _LLAMA_DOWN, r"weight.*differ|shard", (1,)),
    Case("fsdp2", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("tp2", "shard_shifted", SLICING, _LLAMA_UP, _SLICED, (1,)),
    Case("tp2", "norm_of_one_rank", REPLICA, r"layers\.1\.post_attention_layernorm", _STALE, (1,)),
    Case("tp2", "reduced_twice", REDUCTION, _LLAMA_DOWN, _TWICE),
    Case("tp2", "positions_off_on_one_rank", DATA, r"rotary", _GIVEN, (1,)),
    Case("tp2", "result_of_one_rank", REPLICA, r"layers\.1\.mlp(\.act_fn)?\b", _GIVEN, (1,)),
    Case("sp2", "norm_of_one_rank", REPLICA, r"layers\.1\.norm", _STALE, (1,)),
    Case("sp2", "result_of_one_rank", REPLICA, r"layers\.1\.act", _GIVEN, (1,)),
    Case("fsdp2_tp2", "shard_of_one_rank", SLICING, _LLAMA_DOWN, r"weight.*differ|shard", (1, 3)),
    Case("fsdp2_tp2", "positions_off_on_one_rank", DATA, r"rotary", _GIVEN, (3,)),
    Case("pipeline2_interleaved", "microbatches_not_scaled", SCALING, _GRADIENT, _MICROBATCHES),
    Case("pipeline2_interleaved", "weights_of_another_layer", SLICING, _UP, r"weight.*differ", (1,)),
    Case("pipeline2_interleaved", "rounded_transfer", DATA, _TRANSFER, rf"{_GIVEN}|precision", (0, 1)),
    Case("pipeline2_breadth_first", "bias_of_norm", REPLICA, _NORM2, r"bias.*differ", (1,)),
    Case("pipeline2_zero_bubble", "weights_of_another_layer", SLICING, _UP, r"weight.*differ", (1,)),
    Case("pipeline2_1f1b", "microbatches_not_scaled", SCALING, _GRADIENT, _MICROBATCHES),
    Case("tensor2_marked", "shard_shifted", SLICING, _UP, _SLICED, (1,)),
    Case("tensor2_marked", "no_all_reduce", REDUCTION, _DOWN, _MISSING),
    Case("hsdp4", "shard_of_one_rank", SLICING, _LLAMA_DOWN, r"weight.*differ|shard|replica", (2, 3)),
    Case("hsdp4", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("fsdp2", "same_data_on_every_rank", DATA, r"embed|ForCausalLM", _OTHER_DATA, (1,)),
    Case("ddp4_gpt2", "gradient_not_reduced", SCALING, _GRADIENT, _NOT_SYNCED),
    Case("ddp4_gpt2", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("fsdp1", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("fsdp1", "gradient_not_reduced", SCALING, _GRADIENT, _NOT_SYNCED),
    Case("fsdp1", "shard_of_one_rank", SLICING, r"layers\.1\b", r"weight.*differ|shard", (1,)),
    Case("fsdp1", "same_data_on_every_rank", DATA, r"embed|ForCausalLM", _OTHER_DATA, (1,)),
    Case("fsdp1", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
    Case("fsdp1_original", "gradient_summed", SCALING, _GRADIENT, _SUMMED),
    Case("fsdp1_original", "shard_of_one_rank", SLICING, r"layers\.1\b", r"weight.*differ|shard", (1,)),
    Case("fsdp1_original", "rate_of_one_rank", TRAINING, _UPDATE, _RATE, (1,)),
)  # fmt: skip
CLEAN_LAYOUTS = tuple(
    Case(layout)
    for layout in (
        "tensor2", "tensor4", "sequence2", "data2_tensor2", "data2_tensor4", "pipeline2", "pipeline2_1f1b",
        "pipeline2_interleaved", "pipeline2_breadth_first", "pipeline2_zero_bubble", "pipeline2_tied",
        "pipeline2_tensor2", "tensor2_marked", "context2", "experts2", "ddp2", "ddp4_gpt2", "ddp2_mixtral",
        "ddp2_shares", "ddp2_in_parts", "fsdp1", "fsdp1_original", "fsdp2", "hsdp4", "tp2", "sp2",
        "fsdp2_tp2",
    )
)  # fmt: skip
CASES = (*CLEAN_LAYOUTS, *FAULTS)
