"""Which generated kernel computes a node: Inductor records this while it compiles a region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msprobe.pytorch.features import inductor_names_kernels


@dataclass(frozen=True)
class Kernel:
    """A kernel of Inductor, the file that defines or calls it, and the nodes of the region that it computes."""

    name: str
    file: str
    nodes: tuple[str, ...]
    traces: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} in {self.file}"


@contextmanager
def note_kernels(kernels: list[Kernel]) -> Iterator[None]:
    """Appends the kernels that Inductor generates. Its caches are off here: they do not store the nodes.

    Inductor draws its own random numbers; here it draws those of eager code, so that results are comparable. A version
    that does not know the nodes of a kernel adds none.
    """
    import torch._functorch.config as functorch
    import torch._inductor.config as config
    from torch._inductor import debug
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.compile_to_module
    settings: dict[str, Any] = {"fx_graph_cache": False, "fallback_random": True}

    def compile_to_module(lowering: Any) -> Any:
        module = original(lowering)
        for name, facts in debug.create_kernel_information_json().items():
            kernels.append(
                Kernel(
                    name.rpartition(":")[0] or name,
                    str(getattr(module, "__file__", "")),
                    tuple(facts.get("pre_grad_nodes", ())),
                    tuple(facts.get("stack_traces", ())),
                )
            )
        return module

    if inductor_names_kernels():
        GraphLowering.compile_to_module = compile_to_module
        settings["trace.provenance_tracking_level"] = 1
    try:
        with config.patch(settings), functorch.patch(enable_autograd_cache=False):
            yield
    finally:
        GraphLowering.compile_to_module = original


def kernels_of(kernels: Sequence[Kernel], node: str, trace: str) -> list[Kernel]:
    """The kernels that compute a node; found by its source line if Inductor has lost its name."""
    named = [kernel for kernel in kernels if node in kernel.nodes]
    if named:
        return named
    return [kernel for kernel in kernels if trace and any(trace in other for other in kernel.traces)]
