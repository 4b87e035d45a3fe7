"""Samples of a rollout: token ids and log-probabilities, from JSON lines, slime's `.pt` files or verl's batches."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from msprobe.dump.errors import DumpError, first_line
from msprobe.rollout.checkpoints import fills_its_memory

_PROMPT = ("prompt_token_ids", "prompt_ids", "prompt", "prompts", "input_ids")
_RESPONSE = ("response_token_ids", "response_ids", "response", "responses", "output_ids", "token_ids")
_LOGPROBS = ("rollout_log_probs", "logprobs", "log_probs", "response_logprobs", "output_token_logprobs")
_MAX_LINE = 64 << 20


@dataclass(frozen=True)
class Sample:
    """One sequence. `logprobs` are of the response tokens; None if the file has none."""

    prompt: list[int]
    response: list[int]
    logprobs: Optional[list[float]] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.response


def read_samples(path: Path) -> list[Sample]:
    """All samples of a file. Raises DumpError that names the line and what is wrong with it."""
    if not path.is_file():
        raise DumpError(f"{path} does not exist.")
    found = list(_from_torch(path) if path.suffix in (".pt", ".pth") else _from_lines(path))
    if not found:
        raise DumpError(f"{path} has no samples.")
    return found


def _from_lines(path: Path) -> Iterator[Sample]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE), b""), 1):
                if line.strip():
                    yield _from_line(line, f"{path}, line {number}")
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror or error}.") from None


def _from_line(line: bytes, where: str) -> Sample:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise DumpError(f"{where} is not JSON: the file is damaged or cut off.") from None
    if not isinstance(value, dict):
        raise DumpError(f"{where} is not an object with token ids.")
    return make_sample(value, where)


def make_sample(value: Mapping[str, Any], where: str) -> Sample:
    """One sample from an object with token ids, as slime, verl or a script writes it."""
    if isinstance(value.get("tokens"), (list, tuple)) and "response_length" in value:
        tokens = _ids(value["tokens"], where)
        length = value["response_length"]
        if type(length) is not int or not 0 <= length <= len(tokens):
            raise DumpError(f"{where}: response_length is {length!r}, but there are {len(tokens)} tokens.")
        prompt, response = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    else:
        prompt, response = (_ids(_find(value, names, where), where) for names in (_PROMPT, _RESPONSE))
    return Sample(prompt, response, _logprobs(value, len(response), where), *_settings(value, where))


def _settings(value: Mapping[str, Any], where: str) -> tuple[Optional[float], Optional[float]]:
    inside = value.get("sampling_params")
    source = {**inside, **value} if isinstance(inside, dict) else value
    numbers = [source.get(name) for name in ("temperature", "top_p")]
    first, second = (_float(one, where) if isinstance(one, (int, float)) else None for one in numbers)
    return first, second


def _float(value: Any, where: str) -> float:
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found) and found != -math.inf:  # a token that was masked out has -inf
        raise DumpError(f"{where} has a number that is not finite.")
    return found


def _find(value: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    for name in names:
        if isinstance(value.get(name), (list, tuple)):
            return value[name]
    if any(isinstance(value.get(name), str) for name in (*names, "input", "output")):
        raise DumpError(
            f"{where} has text but no token ids, and tokenizing text again may give different tokens. "
            f"Save the ids as {names[0]!r}."
        )
    raise DumpError(f"{where} has none of {', '.join(names)}.")


def _ids(value: Any, where: str) -> list[int]:
    if any(type(one) is not int or not 0 <= one < 1 << 63 for one in value):
        raise DumpError(f"{where} has a token id that is not a whole number from 0.")
    return list(value)


def _logprobs(value: Mapping[str, Any], length: int, where: str) -> Optional[list[float]]:
    found = next((value[name] for name in _LOGPROBS if isinstance(value.get(name), (list, tuple))), None)
    if found is None:
        return None
    numbers = [one[0] if isinstance(one, (list, tuple)) and one else one for one in found]
    if any(not isinstance(one, (int, float)) or isinstance(one, bool) for one in numbers):
        raise DumpError(f"{where} has a log-prob that is not a number.")
    if len(numbers) != length:
        raise DumpError(f"{where} has {len(numbers)} log-probs for {length} response tokens.")
    return [_float(one, where) for one in numbers]


def _from_torch(path: Path) -> Iterator[Sample]:
    """slime's debug data ({"samples": [...]}), or verl's batch of padded tensors. Read with `weights_only`."""
    import torch

    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DumpError(
            f"{path} cannot be read as data only: {first_line(error)} Save plain lists and tensors."
        ) from None
    samples = value.get("samples") if isinstance(value, dict) else value
    if isinstance(samples, (list, tuple)):
        for number, one in enumerate(samples, 1):
            if not isinstance(one, dict):
                raise DumpError(f"{path}, sample {number} is not a dict.")
            yield make_sample(one, f"{path}, sample {number}")
        return
    batch = value.get("batch", value) if isinstance(value, dict) else None
    if not isinstance(batch, dict) or not all(name in batch for name in ("input_ids", "attention_mask", "responses")):
        raise DumpError(f"{path} has neither samples nor a batch with input_ids, attention_mask and responses.")
    yield from _from_batch(batch, value, path)


def _from_batch(batch: Mapping[str, Any], value: Mapping[str, Any], path: Path) -> Iterator[Sample]:
    """verl pads prompts on the left and responses on the right."""
    ids, mask, responses = (batch[name] for name in ("input_ids", "attention_mask", "responses"))
    logprobs = next((batch[name] for name in _LOGPROBS if name in batch), None)
    facts = value.get("meta_info")
    temperature = _settings(facts, str(path))[0] if isinstance(facts, dict) else None
    if not all(_is_table(one) for one in (ids, mask, responses)):
        raise DumpError(f"{path}: input_ids, attention_mask and responses must be tables of whole numbers.")
    width = responses.shape[1]
    if ids.shape != mask.shape or ids.shape[1] < width or len(ids) != len(responses):
        raise DumpError(f"{path}: input_ids, attention_mask and responses do not fit together.")
    if logprobs is not None and (not _is_table(logprobs, whole=False) or logprobs.shape != responses.shape):
        raise DumpError(f"{path}: the log-probs do not fit the responses.")
    for row in range(len(ids)):
        kept = mask[row].bool()
        prompt = ids[row, :-width][kept[:-width]].tolist()
        answered = kept[-width:]
        known = None if logprobs is None else logprobs[row][answered].tolist()
        yield Sample(prompt, responses[row][answered].tolist(), known, temperature)


def _is_table(value: Any, whole: bool = True) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.ndim != 2 or not fills_its_memory(value):
        return False
    return not whole or not (value.is_floating_point() or value.is_complex())
