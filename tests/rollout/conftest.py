"""A small Llama, the engine of the tests on its weights, and the trainer's dump of what the engine produced."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """The directory of a checkpoint, its configuration and its weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += torch.randn_like(parameter) * 0.2
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    return path, config, {name: value.detach() for name, value in model.state_dict().items()}


@pytest.fixture(scope="session")
def roll(llama, tmp_path_factory):
    """Runs the engine with the plugin's code attached. Returns the dump and the sequences."""
    from small_engine import PROMPTS, Runner

    from msprobe.pytorch.rollout.vllm_steps import EngineSteps

    def run(change_weights=None, change_runner=None, dtype=torch.float32, prompts=PROMPTS, task="tensor", **options):
        _, config, weights = llama
        weights = {name: value.clone() for name, value in weights.items()}
        if change_weights is not None:
            change_weights(weights)
        runner = Runner(config, {name: value.to(dtype) for name, value in weights.items()}, **options)
        if change_runner is not None:
            change_runner(runner)
        root = tmp_path_factory.mktemp("rollout")
        settings = root / "config.json"
        settings.write_text(json.dumps({"task": task, "level": "L0", "dump_path": str(root / "dump")}))
        steps = EngineSteps(runner, str(settings))
        steps.attach()
        with torch.no_grad():
            sequences = runner.run(prompts)
        steps._debugger._lifecycle.close()
        return root / "dump", sequences

    return run


@pytest.fixture(scope="session")
def train(llama, tmp_path_factory):
    """Collects the trainer's side of some sequences."""
    from msprobe.pytorch.rollout.trainer_run import collect_trainer, load_model

    def run(sequences, dtype=None):
        output = tmp_path_factory.mktemp("trainer") / "dump"
        collect_trainer(load_model(llama[0], dtype), sequences, output)
        return output

    return run
