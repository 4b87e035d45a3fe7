"""`msprobe rollout trainer`: the trainer's side of a comparison, for exactly the tokens that an engine produced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from msprobe.dump.errors import DumpError
from msprobe.pytorch.debugger import PrecisionDebugger

_BATCH_ROWS = 4096


def load_model(directory: Path, dtype: Optional[str] = None) -> Any:
    """A Hugging Face model from a local directory; no code of the directory is run."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise DumpError("this needs transformers: `pip install transformers`.") from None
    if not (directory / "config.json").is_file():
        raise DumpError(f"{directory} is not a Hugging Face checkpoint: it has no config.json.")
    wanted = getattr(torch, dtype, None) if dtype else "auto"
    if wanted is None:
        raise DumpError(f"{dtype!r} is not a dtype of torch: use float32, bfloat16 or float16.")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=wanted, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise DumpError(f"{directory} cannot be loaded: {str(error).splitlines()[0]}") from None
    return model.eval()


def collect_trainer(model: Any, sequences: Sequence[Sequence[int]], output: Path) -> int:
    """Runs the model over the sequences, padded on the right, and dumps its tensors at L0. Returns the forwards."""
    vocabulary = model.get_input_embeddings().num_embeddings
    largest = max(max(one) for one in sequences)
    if largest >= vocabulary:
        raise DumpError(f"token id {largest} is not in the vocabulary of {vocabulary}: a different tokenizer.")
    debugger = PrecisionDebugger(dump_path=str(output), task="tensor", level="L0")
    debugger.start(model=model)
    count = 0
    for batch in _batches(sequences):
        longest = max(len(one) for one in batch)
        ids = torch.tensor([[*one, *[0] * (longest - len(one))] for one in batch])
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in batch])
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask, use_cache=False)
        count += 1
    debugger.stop()
    debugger.step()
    return count


def _batches(sequences: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Sequences in order, as many in one batch as fit into the rows of one forward."""
    batches: list[list[Sequence[int]]] = []
    for one in sequences:
        last = batches[-1] if batches else None
        if last is not None and (len(last) + 1) * max(len(one), *(len(x) for x in last)) <= _BATCH_ROWS:
            last.append(one)
        else:
            batches.append([one])
    return batches


def sequence_logits(model: Any, tokens: Sequence[int]) -> Any:
    """The logits of one sequence, [tokens, vocabulary], as numpy."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].float().numpy()
