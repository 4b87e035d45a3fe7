"""Real vLLM against Hugging Face: clean pairs must have no finding, planted faults must be found and explained.

python -m benchmarks.rollout.run [--only NAME] [--dtype bfloat16] [--keep DIR]    (in the venv of vLLM)
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Optional

from benchmarks.rollout import engine, models
from benchmarks.rollout.faults import FAULTS, PAIRS, Fault, both, damaged_copy

LONG = [[*range(1, 70)], [*range(1, 70), 300, 301], [*range(1, 66), 9, 8, 7]]
CLEAN: dict[str, dict[str, Any]] = {
    "batch, qwen2": {"kind": "qwen2"},
    "batch, qwen3": {"kind": "qwen3"},
    "batch, llama": {"kind": "llama"},
    "batch, mixtral": {"kind": "mixtral"},
    "batch, qwen3_moe": {"kind": "qwen3_moe"},
    "two answers to each prompt": {"kind": "qwen3", "sampling": {"n": 2}},
    "chunked prefill": {
        "kind": "qwen3",
        "max_num_batched_tokens": 48,
        "max_num_seqs": 4,
        "enable_chunked_prefill": True,
    },
    "prefix cache": {
        "kind": "qwen3",
        "prompts": LONG,
        "enable_prefix_caching": True,
        "block_size": 32,
        "max_num_seqs": 1,
    },
    "preemption": {
        "kind": "qwen3",
        "num_gpu_blocks_override": 6,
        "block_size": 32,
        "prompts": [[*range(k, k + 30)] for k in (1, 50, 90, 130)],
        "sampling": {"max_tokens": 40},
        "enable_prefix_caching": False,
    },
    "left padding of the trainer": {"kind": "llama", "padding": "left"},
    "prompt log-probs": {"kind": "llama", "sampling": {"prompt_logprobs": 0}},
    "child process": {"kind": "qwen3", "in_child": True},
    "tensor parallel 2": {"kind": "qwen3", "tensor_parallel_size": 2, "in_child": True},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--keep", type=Path, help="work here and keep everything")
    args = parser.parse_args()
    root = args.keep or Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    engine.prepare()
    _import_readers()
    wrong = total = 0
    for dtype in args.dtype.split(","):
        for name, scenario in CLEAN.items():
            if args.only in f"clean {name}":
                total += 1
                wrong += not _clean(root, name, dict(scenario), dtype)
        for fault in FAULTS:
            for kind in fault.kinds if dtype in fault.dtypes else ():
                if args.only in f"fault {fault.name}":
                    total += 1
                    wrong += not _fault(root, fault, kind, dtype)
        named = {fault.name: fault for fault in FAULTS}
        for first, second in PAIRS:
            if args.only in f"pair {first} and {second}":
                total += 1
                wrong += not _pair(root, named[first], named[second], dtype)
    print(f"{total - wrong} of {total} right")
    if args.keep is None:
        shutil.rmtree(root)
    return 1 if wrong else 0


def _clean(root: Path, name: str, scenario: dict[str, Any], dtype: str) -> bool:
    place = _place(root, f"clean {name} {dtype}")
    model = models.make(scenario.pop("kind"), place / "model", dtype)
    found = _compare(place, model, model, dtype, **scenario)
    good = found is not None and found["verdict"] == "same"
    _tell(good, f"clean {name}", dtype, found, place)
    return good


def _fault(root: Path, fault: Fault, kind: str, dtype: str) -> bool:
    place = _place(root, f"fault {fault.name} {kind} {dtype}")
    clean = models.make(kind, place / "model", dtype, **fault.model)
    damaged = damaged_copy(fault, clean, place / "damaged")
    planted = {"model": clean, "rank1": damaged} if fault.only_rank1 else {"model": damaged}
    found = _compare(place, clean=clean, dtype=dtype, loaded=fault.loaded, **planted, **fault.options)
    good = found is not None and is_right(fault, found)
    _tell(good, f"fault {fault.name}, {kind}", dtype, found, place)
    return good


def _pair(root: Path, first: Fault, second: Fault, dtype: str) -> bool:
    """Two faults at once: the first is the answer, and the second is among the findings."""
    fault = both(first, second)
    place = _place(root, f"pair {fault.name} {dtype}")
    clean = models.make("qwen3", place / "model", dtype)
    damaged = damaged_copy(fault, clean, place / "damaged")
    found = _compare(place, damaged, clean, dtype, loaded=fault.loaded)
    good = found is not None and is_right(fault, found) and _is_found(second, found)
    _tell(good, f"pair {fault.name}", dtype, found, place)
    return good


def _is_found(fault: Fault, found: dict[str, Any]) -> bool:
    if not fault.module:
        return (found["logprob_cause"] or {}).get("cause") in fault.causes
    return any(
        re.search(fault.module, one["node"]["module"]) and one["cause"] in fault.causes for one in found["findings"]
    )


def is_right(fault: Fault, found: dict[str, Any]) -> bool:
    """Whether the first finding is at the right module with the right cause."""
    if not fault.module:
        return not found["findings"] and (found["logprob_cause"] or {}).get("cause") in fault.causes
    if not found["findings"]:
        return False
    first = found["findings"][0]
    return bool(re.search(fault.module, first["node"]["module"])) and first["cause"] in fault.causes


def _compare(
    place: Path, model: Path, clean: Path, dtype: str, padding: str = "right", **scenario: Any
) -> Optional[dict[str, Any]]:
    run = partial(engine.generate, model, place / "rollout", place / "samples.jsonl", dtype, **scenario)
    if not engine.in_fork(run, place / "engine.log"):
        return None
    if not engine.in_fork(partial(_judge, place, clean, dtype, padding), place / "compare.log"):
        return None
    return dict(json.loads((place / "answer.json").read_text()))


def _judge(place: Path, clean: Path, dtype: str, padding: str) -> None:
    import torch

    from msprobe.dump.reader import open_dump
    from msprobe.pytorch.rollout.trainer_run import collect_trainer, load_model
    from msprobe.rollout.comparison import compare_by_token

    torch.set_num_threads(1)
    lines = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    collect = collect_trainer if padding == "right" else _collect_left
    collect(load_model(clean, dtype), [one["prompt"] + one["response"] for one in lines], place / "trainer")
    found = compare_by_token(open_dump(place / "rollout"), open_dump(place / "trainer"))
    (place / "answer.json").write_text(json.dumps(found.summary()))


def _collect_left(model: Any, sequences: list[list[int]], output: Path) -> None:
    """A trainer that pads on the left, with positions that count from the first token."""
    import torch

    from msprobe.pytorch import PrecisionDebugger

    longest = max(map(len, sequences))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in sequences])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in sequences])
    debugger = PrecisionDebugger(dump_path=str(output), task="tensor", level="L0")
    debugger.start(model=model)
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    debugger.stop()
    debugger.step()


def _import_readers() -> None:
    """Once, before the forks."""
    from transformers import AutoModelForCausalLM  # noqa: F401
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: F401

    import msprobe.pytorch.rollout.trainer_run
    import msprobe.rollout.comparison  # noqa: F401


def _place(root: Path, name: str) -> Path:
    place = root / re.sub(r"\W+", "_", name)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def _tell(good: bool, name: str, dtype: str, found: Optional[dict[str, Any]], place: Path) -> None:
    text = f"failed, see {place}" if found is None else found["sentence"]
    print(f"{time.strftime('%H:%M:%S')} {'ok   ' if good else 'WRONG'} {name} [{dtype}]: {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
