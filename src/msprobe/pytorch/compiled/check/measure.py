"""Three runs of one graph on the same inputs: compiled, eager and fp64; and the verdict on each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
import torch.fx

from msprobe.pytorch.compiled.check import graphs
from msprobe.pytorch.compiled.check.judge import Verdict, judge_all
from msprobe.pytorch.compiled.check.runs import (
    Eager,
    Incoming,
    Reference,
    copy_inputs,
    run,
    widen,
    without_warnings,
)


@dataclass(frozen=True)
class Call:
    """One call of a region: its inputs, the random state before it, inputs of other shapes that came earlier, and the
    gradients of its results."""

    inputs: Sequence[Any]
    state: Any
    earlier: Sequence[Sequence[Any]] = ()
    incoming: Incoming = None


@dataclass(frozen=True)
class Compiler:
    """Compiles a part of a region as the region was compiled."""

    backend: Any
    dynamic: bool

    def __call__(self, graph: torch.fx.GraphModule) -> Callable[..., Any]:
        return torch.compile(graph, backend=self.backend, dynamic=self.dynamic)


@dataclass
class Measured:
    """The verdicts on the values of one graph."""

    verdicts: dict[str, Verdict]
    random: dict[str, Any] = field(default_factory=dict)
    """The nodes that drew random numbers."""
    eager: Mapping[str, Any] = field(default_factory=dict)
    """The values of the eager run."""

    @property
    def wrong(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts.values() if verdict.wrong]

    @property
    def worst(self) -> Optional[Verdict]:
        return max(self.wrong, key=lambda verdict: verdict.factor, default=None)


class Runs:
    """Counts the runs of a region: a part counts as its share of the nodes."""

    def __init__(self, nodes: int) -> None:
        self._nodes = max(nodes, 1)
        self.count = 0.0

    def add(self, graph: torch.fx.GraphModule) -> None:
        self.count += min(len(graphs.calls_of(graph)) / self._nodes, 1.0)


def measure(graph: torch.fx.GraphModule, compiled: Callable[..., Any], call: Call, runs: Runs) -> Measured:
    """Runs the graph three times. The compiled code runs with the earlier inputs first."""
    names = graphs.input_names(graph)
    backward = torch.is_grad_enabled()
    with without_warnings(), same_random_numbers():
        for others in call.earlier:
            run(compiled, names, copy_inputs(others), call.state, backward)
        found = run(compiled, names, copy_inputs(call.inputs), call.state, backward, call.incoming)
    with without_warnings():
        eager = Eager(graph)
        expected = run(eager.run, names, copy_inputs(call.inputs), call.state, backward, call.incoming)
        wide = Reference(widen(graph), eager.random)
        inputs = copy_inputs(call.inputs, wide=True)
        reference = run(wide.run_wide, names, inputs, call.state, backward, call.incoming)
    for _ in range(3):
        runs.add(graph)
    judged: dict[str, Verdict] = {}
    for is_gradient in (False, True):

        def of_kind(values: Mapping[str, Any], kind: bool = is_gradient) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name.startswith("gradient of") == kind}

        judged.update(judge_all(of_kind(found), of_kind(expected), of_kind(reference)))
    return Measured(judged, eager.random, expected)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Inductor draws its own random numbers; here it draws those of eager code, so that results are comparable."""
    import torch._inductor.config as inductor

    with inductor.patch(fallback_random=True):
        yield
