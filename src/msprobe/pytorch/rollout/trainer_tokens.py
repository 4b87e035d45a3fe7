"""tokens.json of a trainer: the sequence and position of each row, from the arguments of the model's forward.

Padding left or right comes from `attention_mask`, packed sequences from `cu_seqlens` or from positions that start at 0
again, and the place of a shard of the sequence from `position_ids`.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from msprobe.collect.probe import Companion
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.tokens import PADDING, TRAINER, Forward, SequenceTokens, Tokens
from msprobe.pytorch.modules.copies import HOOKS, PlainCopies
from msprobe.pytorch.modules.module_calls import is_traced

_CUMULATIVE = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens", "cu_seq_lens")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class TrainerTokens(Companion):
    """Watches the forwards of the first model from start() to stop(), and writes tokens.json into `directory`."""

    def __init__(self, recorder: Recorder, directory: Path) -> None:
        self._recorder = recorder
        self._directory = directory
        self._tokens = Tokens(TRAINER)
        self._model: Any = None
        self._copies = PlainCopies()

    def install(self, models: Sequence[Any]) -> None:
        if not models or isinstance(models[0], torch.jit.ScriptModule):
            return
        if getattr(models[0], "_compiled_call_impl", None) is not None:
            return  # compiled in place: one more hook would compile it again
        self._model = models[0]
        self._copies.install()
        self.resume()

    def remove(self) -> None:
        self.suspend()
        self._model = None
        self._copies.remove()

    def suspend(self) -> None:
        if self._model is not None:
            for kind in HOOKS:
                getattr(self._model, kind).pop(self._copies.key, None)

    def resume(self) -> None:
        if self._model is not None:
            self._model._forward_pre_hooks[self._copies.key] = self._before
            self._model._forward_pre_hooks_with_kwargs[self._copies.key] = True

    def _before(self, model: Any, args: Any, kwargs: Any = None) -> None:
        if is_traced():
            return
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                if self._add(name_arguments(model, args, kwargs or {})):
                    self._tokens.engine = {"name": "transformers", **_configuration(model)}
                    self._tokens.write(self._directory)
        except Exception:
            self._recorder.fault("tokens.json", traceback.format_exc())

    def _add(self, arguments: Mapping[str, Any]) -> bool:
        forward = rows_of_batch(arguments, len(self._tokens.sequences))
        if forward is None:
            return False
        rows, sequences = forward
        self._tokens.forwards.append(rows)
        self._tokens.sequences += sequences
        return True


def name_arguments(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward by the names in its signature."""
    names = list(inspect.signature(model.forward).parameters) if args else []
    return {**dict(zip(names, args)), **kwargs}


def rows_of_batch(arguments: Mapping[str, Any], known: int = 0) -> Optional[tuple[Forward, list[SequenceTokens]]]:
    """The rows of one batch, and its sequences, numbered from `known`. None if the arguments have no input_ids."""
    ids = _whole(arguments.get("input_ids"))
    if ids is None or ids.dim() != 2 or not ids.numel():
        return None
    given = _whole(arguments.get("position_ids"))
    if given is not None:
        given = given.expand(ids.shape) if given.dim() == 2 and given.shape[-1] == ids.shape[-1] else None
    mask = arguments.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
        mask = torch.ones_like(ids)
    cumulative = next((_whole(arguments[name]) for name in _CUMULATIVE if arguments.get(name) is not None), None)
    kept = mask.cpu() != 0
    local, position = _places(ids, kept, given, cumulative)
    sequences = [SequenceTokens(str(known + index), []) for index in range(int(local.max()) + 1)]
    for index, place, token in zip(local.flatten().tolist(), position.flatten().tolist(), ids.flatten().tolist()):
        if index != PADDING and place == len(sequences[index].tokens):
            sequences[index].tokens.append(token)
    number = torch.where(local == PADDING, local, local + known)
    rows = Forward(
        list(ids.shape),
        number.flatten().tolist(),
        position.flatten().tolist(),
        ids.flatten().tolist(),
        None if given is None else given.flatten().tolist(),
    )
    return rows, sequences


def _places(ids: Any, kept: Any, given: Any, cumulative: Any) -> tuple[Any, Any]:
    """The number of the sequence (-1: padding) and the position in it, for each row of a batch."""
    if cumulative is not None and ids.shape[0] == 1:
        bounds = cumulative.flatten().tolist()
        starts = [bound for bound in bounds[:-1] if bound < ids.shape[1]]
        return _packed(ids, starts, kept & (torch.arange(ids.shape[1]) < bounds[-1]))
    if given is not None and ids.shape[0] == 1 and bool(kept.all()):
        zero = (given[0] == 0).nonzero().flatten().tolist()
        if len(zero) > 1 and zero[0] == 0:
            return _packed(ids, zero, kept)
        local = torch.zeros_like(ids)
        if not zero:  # a shard of the sequence
            return local, given.clone()
    local = torch.arange(ids.shape[0])[:, None].expand(ids.shape)
    return torch.where(kept, local, PADDING), torch.where(kept, kept.long().cumsum(1) - 1, 0)


def _packed(ids: Any, starts: list[int], kept: Any) -> tuple[Any, Any]:
    begins = torch.zeros(ids.shape[1], dtype=torch.int64)
    begins[torch.tensor(starts)] = 1
    local = begins.cumsum(0) - 1
    position = torch.arange(ids.shape[1]) - torch.tensor(starts)[local]
    return torch.where(kept, local[None], PADDING), torch.where(kept, position[None], 0)


def _whole(value: Any) -> Any:
    """A tensor of whole numbers on the host; None for anything else."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
        return None
    return value.detach().cpu().long()


def _configuration(model: Any) -> dict[str, Any]:
    """The configuration of a Hugging Face model, which says how to compute it again."""
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    config = getattr(model, "config", None)
    to_text = getattr(config, "to_json_string", None)
    if to_text is None:
        return {}
    return {"config": json.loads(to_text(use_diff=False)), "dtype": str(next(model.parameters()).dtype)}
