"""free_benchmark on MindSpore: tensors as numbers in memory, and the random state of the first run."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple, Optional

import mindspore

from msprobe.collect import notices
from msprobe.frameworks.mindspore.tensors import row_of
from msprobe.mindspore.tasks.dry_runs import DryRuns
from msprobe.mindspore.tasks.perturb import MindSporePerturbations, array_of
from msprobe.stats.scan import FORMATS
from msprobe.tasks.free_benchmark.perturbation import TO_CPU
from msprobe.tasks.free_benchmark.run import FreeBenchmarkRun
from msprobe.tasks.free_benchmark.second_run import Flat, SecondRun, host_random, set_host_random

_COMPLEX = {"complex64": "float32", "complex128": "float64"}


class Random(NamedTuple):
    """The state of all generators that a call may draw from; `host` only for user functions."""

    host: Any
    generator: Any

    @classmethod
    def now(cls, host: bool) -> Random:
        return cls(host_random() if host else None, mindspore.get_rng_state())

    def put_back(self) -> None:
        if self.host is not None:
            set_host_random(self.host)
        mindspore.set_rng_state(self.generator)

    def drawn(self) -> bool:
        """Whether a number was drawn since."""
        return bool((self.generator.asnumpy() != mindspore.get_rng_state().asnumpy()).any())


class MindSporeSecondRun(SecondRun):
    """Shared by the forward and the backward stage."""

    def __init__(self, run: FreeBenchmarkRun, dry_runs: DryRuns, step: int, rank: int) -> None:
        super().__init__(run, MindSporePerturbations(), step, rank)
        self.dry_runs = dry_runs
        self.perturbations_with_graph = MindSporePerturbations(graph=True)

    def dtype(self, tensor: Any) -> str:
        row = row_of(tensor)
        return row.name if row is not None else str(tensor.dtype)

    def flat(self, tensor: Any) -> Flat:
        array = array_of(tensor)
        name = self.dtype(tensor)
        if name in _COMPLEX:
            name = _COMPLEX[name]
            array = array.copy(order="C").reshape(-1).view(name)
        if name not in FORMATS:
            return Flat(array, 0, -1, array.size)
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        return Flat(array, array.__array_interface__["data"][0], FORMATS[name], array.size)

    def isolate(self, random: Optional[Random], stack: ExitStack) -> None:
        """Until the stack unwinds: the random numbers of the first run."""
        if random is not None:
            stack.callback(Random.now(random.host is not None).put_back)
            random.put_back()


def warn_of_device(mode: str) -> None:
    target = mindspore.get_context("device_target")
    if mode == TO_CPU and target != "CPU":
        notices.warn_once(
            f"free_benchmark: MindSpore runs every call on {target}: with to_cpu the second run stays there, in raised "
            "precision."
        )
