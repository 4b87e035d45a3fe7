"""Makes pairs of dumps with long names: a small Llama, the same with LoRA, and DDP on two ranks; also a watched run,
checkpoints and samples of a rollout.

`python pairs.py models OUT`, and `torchrun --nproc_per_node 2 pairs.py ranks OUT`. Each target has one fault.
`pairs.py script llama wrong` is a script for the verbs that run one: it trains without msprobe.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msprobe.pytorch import Monitor, PrecisionDebugger

STEPS = 2


def small_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_adapters() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(small_llama(), config)  # type: ignore[no-any-return]


def train(model: nn.Module, path: Path, task: str = "statistics") -> None:
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    debugger = PrecisionDebugger(dump_path=str(path), task=task, level="mix", step=list(range(STEPS)))
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(64, (2, 8), generator=generator)
        debugger.start(model)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def make_models(out: Path) -> None:
    train(small_llama(), out / "llama" / "golden")
    wrong = small_llama()
    wrong.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2
    train(wrong, out / "llama" / "target")
    train(with_adapters(), out / "lora" / "golden")
    wrong = with_adapters()
    wrong.base_model.model.model.layers[1].self_attn.v_proj.scaling["default"] = 2.5
    train(wrong, out / "lora" / "target")
    broken = small_llama()
    broken.model.layers[2].mlp.up_proj.weight.data.fill_(float("inf"))
    train(broken, out / "overflow", "tensor")
    watch(small_llama(), out / "watch")
    save_weights(out)


def save_weights(out: Path) -> None:
    """Two checkpoints with many different tensors, and samples whose log-probs do not fit."""
    model = small_llama()
    model.save_pretrained(out / "weights" / "golden")
    ids = torch.randint(64, (12,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = torch.log_softmax(model(ids[None]).logits[0, 3:-1] / 0.5, -1).gather(1, ids[4:, None])[:, 0]
        for parameter in model.parameters():
            parameter[..., 0] += 1
    model.save_pretrained(out / "weights" / "target")
    sample = {"prompt": ids[:4].tolist(), "response": ids[4:].tolist(), "logprobs": found.tolist()}
    (out / "samples.jsonl").write_text(json.dumps(sample) + "\n")


def watch(model: nn.Module, path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = Monitor(model, optimizer, {"dump_path": str(path), "targets": ["weight", "grad", "output"]})
    for step in range(12):
        ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(step))
        if step == 9:
            model.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)


class Block(nn.Module):
    """`gain` is 1 everywhere in a correct run."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.projection_of_the_input, self.gain = nn.Linear(16, 16), gain
        self.normalisation_of_the_residual_stream = nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        return self.normalisation_of_the_residual_stream(x + torch.relu(self.projection_of_the_input(x)) * self.gain)


def make_ranks(out: Path) -> nn.Module:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for name, wrong in (("golden", 1.0), ("target", 1.5)):
        torch.manual_seed(0)
        gain = wrong if dist.get_rank() == 1 else 1.0
        net = nn.Sequential(nn.Linear(8, 16), Block(1.0), Block(gain), Block(1.0), nn.Linear(16, 4))
        model = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        debugger = PrecisionDebugger(dump_path=str(out / "ddp" / name), task="statistics", level="mix")
        torch.manual_seed(dist.get_rank())
        for _ in range(STEPS):
            debugger.start(model)
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            debugger.stop()
            debugger.step()
    dist.destroy_process_group()
    return model


def script(kind: str, state: str) -> None:
    """Trains for two steps. `wrong` has one wrong number; `random` one that differs in every run."""
    torch.manual_seed(0)
    if kind == "llama":
        model = small_llama()
        model.model.layers[1].post_attention_layernorm.variance_epsilon = {"wrong": 1e-2, "right": 1e-6}[state]
    else:
        gain = {"wrong": 1.5, "right": 1.0}.get(state) or time.time()
        model = nn.Sequential(nn.Linear(8, 16), Block(1.0), Block(gain), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        if kind == "llama":
            ids = torch.randint(64, (2, 8), generator=generator)
            loss = model(input_ids=ids, labels=ids).loss
        else:
            loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    if sys.argv[1] == "script":
        script(*sys.argv[2:])
    else:  # a DDP model that is freed after its process group may wait for ever for a thread of gloo
        kept = {"models": make_models, "ranks": make_ranks}[sys.argv[1]](Path(sys.argv[2]))
