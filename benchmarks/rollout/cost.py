"""What the plugin costs in vLLM: CPU time of a decode step, as a ratio to the engine without the plugin.

python -m benchmarks.rollout.cost [--rounds 3]    (in the venv of vLLM)

`idle` has the plugin installed and MSPROBE_ROLLOUT not set; `L0` records statistics of every step. Each run is a fork
of one process, in turns. A long generation less a short one leaves the decode steps: loading and prefill cancel out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Optional

from benchmarks.rollout import engine, models

SHORT, LONG = 4, 36
WAYS = {"bare": "", "idle": "msprobe", "L0": "msprobe"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp())
    engine.prepare()
    sizes = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 8, "num_attention_heads": 20}
    model = models.make("qwen3", root / "model", "float32", **sizes, head_dim=64)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    records = 0
    for number in range(args.rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            place = root / way
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            if not engine.in_fork(partial(_measure, way, model, place), place / "log"):
                print((place / "log").read_text()[-2000:])
                return 2
            found[way].append(json.loads((place / "time.json").read_text()))
            if way == "L0":
                records = len(json.loads((place / f"dump/step{LONG}/rank0/dump.json").read_text())["data"])
    bare = statistics.median(found["bare"])
    for way, values in found.items():
        figures = ", ".join(f"{value * 1e3:.1f}" for value in values)
        print(f"{way:5} {statistics.median(values) / bare:.3f}  ({figures} ms of CPU time for a decode step)")
    extra = statistics.median(found["L0"]) - bare
    print(f"L0: {records} records a step, {extra / records * 1e6:.0f} us of CPU time each")
    shutil.rmtree(root)
    return 0


def _measure(way: str, model: Path, place: Path) -> None:
    os.environ["VLLM_PLUGINS"] = WAYS[way]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if way == "L0":
        config = place / "config.json"
        config.write_text(json.dumps({"task": "statistics", "level": "L0", "dump_path": str(place / "dump")}))
        os.environ["MSPROBE_ROLLOUT"] = str(config)
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    options = {"max_model_len": 128, "enable_prefix_caching": False, "load_format": "safetensors"}
    llm = LLM(model=str(model), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, **options)
    times: dict[int, Optional[float]] = {}
    for tokens in (SHORT, SHORT, LONG):
        settings = SamplingParams(detokenize=False, ignore_eos=True, max_tokens=tokens, temperature=0, logprobs=0)
        start = time.process_time()
        llm.generate([{"prompt_token_ids": [*range(1, 9)]}] * 4, settings, use_tqdm=False)
        times[tokens] = time.process_time() - start
    (place / "time.json").write_text(json.dumps((times[LONG] - times[SHORT]) / (LONG - SHORT)))


if __name__ == "__main__":
    raise SystemExit(main())
