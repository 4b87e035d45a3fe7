"""One step of a vLLM engine is one step of the dump: the model's forward, the logits, and what the sampler returned.

`execute_model` runs the forward and `sample_tokens` samples; profiling and dummy runs go past both. The coordinates of
rows come from the runner's own state, never from the positions that the model receives: those may be wrong.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from msprobe.collect import notices
from msprobe.dump.tokens import PADDING, ROLLOUT, Forward, SequenceTokens, TokenLogprob, Tokens
from msprobe.pytorch.debugger import PrecisionDebugger
from msprobe.pytorch.rollout.attention_taps import tap_attention

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "prompt_logprobs")


@dataclass
class Batch:
    """The requests of one forward: their names, first rows, and how many tokens of each were computed before."""

    names: list[str]
    starts: list[int]
    computed: list[int]


class EngineSteps:
    """Collects the steps of one runner. Errors of msprobe are logged; the engine continues."""

    def __init__(self, runner: Any, config: str) -> None:
        self._runner = runner
        self._config = config
        self._debugger: Any = None
        self._tokens: Optional[Tokens] = None
        self._numbers: dict[str, int] = {}
        self._ids: dict[str, dict[int, int]] = {}  # the tokens of each request by position
        self._batch: Any = None
        self._hook: Any = None

    def attach(self) -> None:
        runner = self._runner
        self._execute, self._sample = runner.execute_model, getattr(runner, "sample_tokens", None)
        runner.execute_model = self.execute_model
        if self._sample is not None:
            runner.sample_tokens = self.sample_tokens
        if hasattr(runner, "prepare_inputs"):  # the second runner of vLLM: its batch is a value, not a state
            self._prepare = runner.prepare_inputs
            runner.prepare_inputs = self.prepare_inputs

    # The methods of the runner.

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        self._batch = self._prepare(*args, **kwargs)
        return self._batch

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        dummy = bool(kwargs.get("dummy_run"))
        if not dummy and scheduler_output.total_num_scheduled_tokens:
            self._guarded(self._start)
        try:
            result = self._execute(scheduler_output, *args, **kwargs)
        except BaseException:
            self._guarded(self._finish)
            raise
        if result is not None and self._tokens is not None:
            self._guarded(lambda: self._read_output(result))
            self._guarded(self._finish)
        return result

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        assert self._sample is not None
        try:
            result = self._sample(*args, **kwargs)
            if self._tokens is not None:
                self._guarded(lambda: self._read_output(result))
        finally:
            self._guarded(self._finish)
        return result

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            notices.warn_once(f"a step of vLLM was not collected completely:\n{traceback.format_exc()}")

    # One step.

    def _start(self) -> None:
        model = self._runner.get_model()
        if self._debugger is None:
            self._debugger = PrecisionDebugger(config_path=self._config)
            tap_attention(model, self._runner)
        self._debugger.start(model=model)
        if self._debugger._lifecycle.directory is None:
            return
        self._tokens = Tokens(ROLLOUT, engine=self._describe())
        self._numbers = {}
        self._hook = model.register_forward_pre_hook(self._before, with_kwargs=True)

    def _finish(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        tokens, self._tokens, self._hook = self._tokens, None, None
        if self._debugger is None:
            return
        directory = self._debugger._lifecycle.directory
        self._debugger.stop()
        if tokens is not None and directory is not None and tokens.forwards:
            tokens.write(directory)
        self._debugger.step()

    def _describe(self) -> dict[str, Any]:
        engine = sys.modules.get("vllm")
        config = getattr(self._runner, "model_config", None)
        cache = getattr(self._runner, "cache_config", None)
        parallel = getattr(self._runner, "parallel_config", None)
        return {
            "name": "vllm",
            "version": str(getattr(engine, "__version__", "")),
            "runner": type(self._runner).__name__,
            "logprobs_mode": str(getattr(config, "logprobs_mode", "raw_logprobs")),
            "model": str(getattr(config, "model", "")),
            "dtype": str(getattr(config, "dtype", "")),
            "kv_cache_dtype": str(getattr(cache, "cache_dtype", "auto")),
            "tensor_parallel": int(getattr(parallel, "tensor_parallel_size", 1)),
        }

    def _before(self, model: Any, args: Any, kwargs: Any) -> None:
        if self._tokens is not None:
            self._guarded(lambda: self._add_rows(args, kwargs))

    def _add_rows(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        assert self._tokens is not None
        ids, given = _column(kwargs.get("input_ids", args[0] if args else None)), _column(kwargs.get("positions"))
        batch = self._current_batch()
        if ids is None or not batch.names:
            return
        rows = len(ids)
        sequence, position = [PADDING] * rows, [0] * rows
        again: list[int] = []
        for index, name in enumerate(batch.names):
            number, known = self._number(name, index), self._ids.setdefault(name, {})
            if not known and batch.computed[index]:
                self._tokens.absent.append([number, 0, batch.computed[index] - 1])
            for row in range(batch.starts[index], min(batch.starts[index + 1], rows)):
                place = batch.computed[index] + row - batch.starts[index]
                sequence[row], position[row] = number, place
                if place in known:
                    again.append(row)
                known[place] = ids[row]
        self._tokens.forwards.append(Forward([rows], sequence, position, ids, given, again))

    def _current_batch(self) -> Batch:
        """The requests of the running step, from either runner of vLLM."""
        if self._batch is not None:
            batch = self._batch
            starts = [int(one) for one in batch.query_start_loc_np]
            return Batch(list(batch.req_ids), starts, [int(one) for one in batch.num_computed_tokens_np])
        state = self._runner.input_batch
        count = int(state.num_reqs)
        starts = [int(one) for one in self._runner.query_start_loc.np[: count + 1]]
        return Batch(list(state.req_ids[:count]), starts, [int(one) for one in state.num_computed_tokens_cpu[:count]])

    def _number(self, name: str, index: int) -> int:
        """The number of a request in this step's file."""
        assert self._tokens is not None
        if name not in self._numbers:
            self._numbers[name] = len(self._tokens.sequences)
            self._tokens.sequences.append(SequenceTokens(name, self._token_ids(name, index), self._sampling(name)))
        return self._numbers[name]

    def _token_ids(self, name: str, index: int) -> list[int]:
        request = getattr(self._runner, "requests", {}).get(name)
        if request is not None:
            return [int(one) for one in (*(request.prompt_token_ids or ()), *request.output_token_ids) if one >= 0]
        known = self._ids.get(name, {})
        return [known[place] for place in sorted(known)]

    def _sampling(self, name: str) -> dict[str, Any]:
        request = getattr(self._runner, "requests", {}).get(name)
        settings = getattr(request, "sampling_params", None)
        return {key: getattr(settings, key) for key in _SAMPLING if getattr(settings, key, None) is not None}

    # What the sampler returned.

    def _read_output(self, output: Any) -> None:
        tokens = self._tokens
        if tokens is None or not tokens.forwards:
            return
        get_output = getattr(output, "get_output", None)
        if get_output is not None:  # asynchronous scheduling: reading it here twice would wait for the device
            tokens.engine["logprobs"] = "not recorded: asynchronous scheduling is on"
            return
        last: dict[int, int] = {}
        for forward in tokens.forwards:
            last.update(zip(forward.sequence, forward.position))
        sampled, logprobs = getattr(output, "sampled_token_ids", None) or (), getattr(output, "logprobs", None)
        for name, index in (getattr(output, "req_id_to_index", None) or {}).items():
            number = self._numbers.get(name)
            if number is None or index >= len(sampled):
                continue
            known = None if logprobs is None else logprobs.slice_request(index, len(sampled[index]))
            for offset, token in enumerate(sampled[index]):
                tokens.sequences[number].tokens.append(int(token))
                if known is not None:
                    place, value = last[number] + 1 + offset, float(known.logprobs[offset][0])
                    tokens.logprobs.append(TokenLogprob(number, place, int(token), value))
        for name, table in (getattr(output, "prompt_logprobs_dict", None) or {}).items():
            number = self._numbers.get(name)
            if number is not None and table is not None:
                columns = zip(table.logprob_token_ids[:, 0].tolist(), table.logprobs[:, 0].tolist())
                tokens.logprobs += [
                    TokenLogprob(number, 1 + place, int(token), float(value), "prompt")
                    for place, (token, value) in enumerate(columns)
                ]


def _column(value: Any) -> Optional[list[int]]:
    """The rows of a tensor of whole numbers; None for anything else. With three rows (mrope), the first."""
    if not isinstance(value, torch.Tensor) or value.is_floating_point():
        return None
    return [int(one) for one in (value[0] if value.dim() == 2 else value).tolist()]
