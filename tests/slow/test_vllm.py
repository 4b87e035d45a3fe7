"""vLLM itself, on the CPU. It needs an environment of its own (docs/guide.md); MSPROBE_VLLM_PYTHON names its Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("MSPROBE_VLLM_PYTHON", sys.executable)
SCRIPT = Path(__file__).parent / "generate_with_vllm.py"
LAYER = ("input_layernorm", "self_attn.qkv_proj", "self_attn.attn", "self_attn.o_proj", "self_attn",
         "post_attention_layernorm", "mlp.gate_up_proj", "mlp.act_fn", "mlp.down_proj", "mlp")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if subprocess.run([PYTHON, "-c", "import vllm, msprobe"], capture_output=True).returncode:
        pytest.skip(f"vLLM and msprobe are not installed for {PYTHON}: msprobe was NOT tested with vLLM")
    return tmp_path_factory.mktemp("vllm")


def generate(folder: Path, level: str, said: int = 0) -> Any:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # with more threads two runs differed once in the last bit
    done = subprocess.run([PYTHON, str(SCRIPT), str(folder), level], capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("Module.model.Qwen2Model is not recorded: the class has a __call__ of its own") == said
    return json.loads((folder / f"{level}.json").read_text())


def test_every_token_step_is_collected_and_the_tokens_stay(folder: Path) -> None:
    """Four tokens of two prompts are four forwards, each with every module that calls its hooks."""
    plain = generate(folder, "off")
    for level in ("mix", "L1"):
        assert generate(folder, level, said=level == "mix") == plain
        steps = sorted(path.name for path in (folder / level).glob("step*"))
        assert steps == ["step0", "step1", "step2", "step3"]
        for step in steps:
            data = json.loads((folder / level / step / "rank0" / "dump.json").read_text())["data"]
            assert "Functional.embedding.0.forward" in data
            if level == "mix":
                paths = {".".join(name.split(".")[1:-3]) for name in data if name.startswith("Module.")}
                wanted = {f"model.layers.{layer}.{part}" for layer in (0, 1) for part in LAYER}
                assert wanted | {"model.embed_tokens", "model.norm", "logits_processor", "model.layers.0"} <= paths
                embedding = data["Module.model.embed_tokens.VocabParallelEmbedding.forward.0"]["output"][0]
                tokens = 7 if step == "step0" else 2  # both prompts, then one token for each
                assert embedding["shape"] == [tokens, 128]
