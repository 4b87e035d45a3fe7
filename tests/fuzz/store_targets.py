"""The readers of weights, of samples of a rollout, and of baselines in a repository."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from dump_targets import write_dump
from fuzzing import Target

from msprobe.baseline.machine import Machine
from msprobe.baseline.store import DUMP, HEAD, Baseline, Store
from msprobe.cli import _run
from msprobe.dump.errors import DumpError
from msprobe.rollout.samples import read_samples

MACHINE = Machine("x86_64", "CPU", "avx2", "", "cpu", "torch", "2.13.0", 1)
SAMPLES = (
    {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4], "rollout_log_probs": [-0.1, -0.2], "temperature": 0.7},
    {"tokens": [1, 2, 3], "response_length": 1, "logprobs": [[-0.5, 3]], "sampling_params": {"top_p": 0.9}},
)


def weights(path: Path) -> None:
    """In both roles; `changed` is a directory with one kind of checkpoint."""
    _run("weights", [str(path / "changed"), str(path / "right.safetensors"), "--json"], None)
    _run("weights", [str(path / "right.safetensors"), str(path / "changed")], None)


def read_baseline(path: Path) -> None:
    """The checksum in the head is that of the changed archive: a stranger can compute it."""
    store = Store(path / "store")
    place = path / "store" / "tiny" / MACHINE.key
    try:
        head = json.loads((place / HEAD).read_bytes())
        head["sha256"] = hashlib.sha256((place / DUMP).read_bytes()).hexdigest()
        (place / HEAD).write_text(json.dumps(head))
    except (ValueError, TypeError):
        pass  # damaged, which the store says
    _run("baseline", ["list", "--in", str(path / "store")], None)
    target = path / "out"
    try:
        for baseline in store.of_name("tiny"):
            store.unpack(baseline, target)
            _run("show", [str(target)], None)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def make_targets(root: Path) -> list[Target]:
    return [*_weights(root / "weights"), *_samples(root / "samples"), _baseline(root / "baseline")]


def _weights(root: Path) -> list[Target]:
    import torch.distributed.checkpoint as dcp

    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    entry = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"tied": '{"x": "w"}'}}
    text = json.dumps(entry).encode()
    safe = len(text).to_bytes(8, "little") + text + value.tobytes()
    targets = []
    for kind in ("safetensors", "pt", "dcp"):
        place = root / kind
        changed = place / "changed"
        changed.mkdir(parents=True)
        (place / "right.safetensors").write_bytes(safe)
        if kind == "safetensors":
            (changed / "model.safetensors").write_bytes(safe)
        elif kind == "pt":
            torch.save({"model": {"w": torch.from_numpy(value)}}, changed / "model.pt")
        else:
            dcp.save({"w": torch.from_numpy(value)}, checkpoint_id=str(changed), no_dist=True)
        files = [one for one in changed.iterdir() if one.is_file()]
        targets.append(Target(f"weights, {kind}", weights, place, *files, restores=True))
    return targets


def _samples(root: Path) -> list[Target]:
    root.mkdir(parents=True)
    lines, batch = root / "samples.jsonl", root / "batch.pt"
    lines.write_text("".join(json.dumps(one) + "\n" for one in SAMPLES))
    ones = torch.ones(1, 4, dtype=torch.int64)
    torch.save({"input_ids": ones, "attention_mask": ones, "responses": ones[:, :2]}, batch)
    single = [root / f"line{number}.json" for number in range(len(SAMPLES))]  # changed by value
    for path, one in zip(single, SAMPLES):
        path.write_text(json.dumps(one))
    return [Target(f"samples, {path.name}", read_samples, path, path) for path in (lines, batch, *single)]


def _baseline(root: Path) -> Target:
    write_dump(root / "dump")
    store = Store(root / "store")
    baseline = Baseline("tiny", MACHINE, ["python"], "abcdef0", "2026-11-18", "1", None, [0], None, 0, 1.0, "")
    place = store.save(baseline, root / "dump", root)
    shutil.rmtree(root / "dump")
    return Target("baseline", read_baseline, root, place / HEAD, place / DUMP, restores=True, refusals=(DumpError,))
