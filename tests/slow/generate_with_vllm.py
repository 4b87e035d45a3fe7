"""Generates tokens with vLLM on the CPU, as vLLM-Ascend calls the debugger: start and stop around `execute_model`.

python generate_with_vllm.py FOLDER LEVEL; LEVEL is L0, L1, mix or off. Writes the tokens and their log-probabilities
to LEVEL.json.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the model runs in this process
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
)


def make_model(path):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}  # heads of 32: the smallest of vLLM's CPU attention
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, dtype="float32")).save_pretrained(path)


def collect(runner, path, level):
    """The sequence of vLLM-Ascend's NPUModelRunner."""
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=path, task="statistics", level=level)
    execute = runner.execute_model

    def execute_model(*args, **kwargs):
        if str(debugger.config.level).upper() in ("L0", "MIX"):
            debugger.start(model=runner.get_model())
        else:
            debugger.start()
        result = execute(*args, **kwargs)
        debugger.stop()
        debugger.step()
        return result

    runner.execute_model = execute_model


def numbers(tokens):
    return [[(token, one.logprob) for token, one in sorted(found.items())] if found else None for found in tokens]


def main(folder, level):
    from vllm import LLM, SamplingParams

    model = folder / "model"
    if not model.exists():
        make_model(model)
    settings = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 128}
    llm = LLM(model=str(model), dtype="float32", load_format="safetensors", **settings)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    if level != "off":
        collect(runner, str(folder / level), level)
    wanted = SamplingParams(max_tokens=4, temperature=0, detokenize=False, prompt_logprobs=1, logprobs=2)
    found = llm.generate([{"prompt_token_ids": [1, 5, 9, 20, 33]}, {"prompt_token_ids": [7, 8]}], wanted)
    made = [
        [list(one.outputs[0].token_ids), numbers(one.outputs[0].logprobs), numbers(one.prompt_logprobs)]
        for one in found
    ]
    (folder / f"{level}.json").write_text(json.dumps(made))


main(Path(sys.argv[1]).resolve(), sys.argv[2])
