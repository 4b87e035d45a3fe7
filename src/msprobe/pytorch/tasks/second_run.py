"""free_benchmark on PyTorch: tensors as numbers in memory, and a second run that leaves no trace."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Optional

import torch

from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.tasks.perturb import PERTURBATIONS
from msprobe.pytorch.tensors import accelerators
from msprobe.stats.scan import FORMATS
from msprobe.tasks.free_benchmark.perturbation import RAISING
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun
from msprobe.tasks.free_benchmark.second_run import Flat, SecondRun, host_random, set_host_random

_SCANNED = {getattr(torch, name): code for name, code in FORMATS.items()}


class TorchSecondRun(SecondRun):
    """Shared by the forward and the backward stage."""

    def __init__(self, run: FreeBenchmarkRun, step: int, rank: int) -> None:
        super().__init__(run, PERTURBATIONS, step, rank)
        self._kinds = accelerators.device_kinds()

    def autocast(self) -> dict[str, Any]:
        """The autocast state by device, as far as the second run must do the same."""
        if self.mode in RAISING or not torch._C._is_any_autocast_enabled():
            return {}
        kinds = ("cpu", *sorted(self._kinds))
        return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}

    def random_state(self, api: Api) -> Optional[list[Any]]:
        """The random state that this API may use: none, that of torch's generators, or all for a user's function."""
        if not (api.random or api.untracked):
            return None
        return [host_random() if api.untracked else None, *self._generators()]

    def isolate(self, random: Optional[list[Any]], stack: ExitStack) -> None:
        """Until the stack unwinds: the random numbers of the first run, and no autocast that lowers precision again."""
        if random is not None:
            after = [host_random() if random[0] is not None else None, *self._generators()]
            stack.callback(self._set_random, after)
            self._set_random(random)
        if self.mode in RAISING and torch._C._is_any_autocast_enabled():
            for kind in ("cpu", *sorted(self._kinds)):
                stack.enter_context(torch.autocast(kind, enabled=False))

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).partition(".")[2]

    def flat(self, tensor: Any) -> Flat:
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        tensor = tensor.cpu()
        if not tensor.is_floating_point():
            return Flat(tensor, 0, -1, tensor.numel())
        tensor = tensor.contiguous()
        tensor = tensor if tensor.dtype in _SCANNED else tensor.float()
        return Flat(tensor, tensor.data_ptr(), _SCANNED[tensor.dtype], tensor.numel())

    def _generators(self) -> list[Any]:
        return [torch.get_rng_state(), *(getattr(torch, kind).get_rng_state() for kind in sorted(self._kinds))]

    def _set_random(self, states: list[Any]) -> None:
        if states[0] is not None:
            set_host_random(states[0])
        torch.set_rng_state(states[1])
        for kind, state in zip(sorted(self._kinds), states[2:]):
            getattr(torch, kind).set_rng_state(state)
