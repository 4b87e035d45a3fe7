"""Runs vLLM on CPU with the plugin of msprobe. vLLM is imported once; each scenario runs in a forked process."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function for the ranks, see _load_on_rank1
}


def prepare() -> None:
    """Imports vLLM, in an environment that works on a CPU machine."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False  # some virtual machines say that they have it
    import vllm
    import vllm.v1.worker.cpu_model_runner  # noqa: F401


def generate(
    model: Path,
    dump: Optional[Path],
    samples: Path,
    dtype: str = "float32",
    loaded: Optional[Callable[[Any, Any], None]] = None,
    rank1: Optional[Path] = None,
    in_child: bool = False,
    prompts: Optional[list[list[int]]] = None,
    sampling: Optional[dict[str, Any]] = None,
    **options: Any,
) -> None:
    """One engine, one batch of prompts: writes a dump and the samples. `rank1` is a checkpoint for rank 1 alone."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if in_child else "0"
    if dump is not None:
        config = samples.with_suffix(".config.json")
        config.write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": str(dump)}))
        os.environ["MSPROBE_ROLLOUT"] = str(config)
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model.absolute()),
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        load_format="safetensors",
        **{"max_model_len": 128, **options},
    )
    if rank1 is not None:
        llm.collective_rpc(_load_on_rank1, args=(str(rank1),))
    if loaded is not None:
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        loaded(runner.get_model(), runner)
    settings = {"max_tokens": 6, "temperature": 0.8, "logprobs": 0, **(sampling or {})}
    answers = llm.generate(
        [{"prompt_token_ids": one} for one in prompts or default_prompts()],
        SamplingParams(detokenize=False, ignore_eos=True, **settings),
        use_tqdm=False,
    )
    with samples.open("w") as file:
        for one in answers:
            for made in one.outputs:
                logprobs = [values[token].logprob for token, values in zip(made.token_ids, made.logprobs)]
                line = {"prompt": list(one.prompt_token_ids), "response": list(made.token_ids), "logprobs": logprobs}
                file.write(json.dumps({**line, "temperature": settings["temperature"]}) + "\n")


def _load_on_rank1(worker: Any, path: str) -> None:
    if worker.rank == 1:
        worker.reload_weights(weights_path=path)


def default_prompts(count: int = 6, seed: int = 0) -> list[list[int]]:
    import random

    generator = random.Random(seed)
    return [[generator.randrange(1, 512) for _ in range(generator.randrange(5, 40))] for _ in range(count)]


def in_fork(action: Callable[[], None], log: Path) -> bool:
    """Runs a scenario in a forked process; its output goes to the log. Returns whether it succeeded."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        action()
        sys.stdout.flush()
        from msprobe.pytorch import PrecisionDebugger

        if PrecisionDebugger._current is not None:
            PrecisionDebugger._current._lifecycle.close()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
