"""The cost of collecting compiled code, as ratios of CPU times, and the runs of a check on the GPT with four layers.

python benchmarks/compiled/cost.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a waiting thread that spins would count as CPU time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger, check_compiled

GPT = importlib.util.spec_from_file_location("gpt", Path(__file__).resolve().parents[1] / "models.py")
ROUNDS = 7
MODULES = 10


def load_gpt() -> Any:
    assert GPT is not None
    assert GPT.loader is not None
    module = importlib.util.module_from_spec(GPT)
    GPT.loader.exec_module(module)
    return module


def time_step(model: nn.Module, batch: Tensor, debugger: Optional[PrecisionDebugger]) -> float:
    begin = time.process_time()
    if debugger is not None:
        debugger.start(model)
    model(batch).float().square().mean().backward()
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return time.process_time() - begin


def make_debugger(directory: str, name: str, level: str, compile: str, **more: Any) -> PrecisionDebugger:
    file = Path(directory) / f"{name}.json"
    keys = {"task": "statistics", "level": level, "dump_path": str(Path(directory) / name), "compile": compile, **more}
    file.write_text(json.dumps({**keys, "statistics": {}}))
    PrecisionDebugger._current = None
    return PrecisionDebugger(str(file))


def compare_costs(
    make: Callable[[bool], tuple[nn.Module, Tensor]], variants: dict[str, tuple[bool, str, str]], rounds: int
) -> dict[str, float]:
    """The median CPU time of each variant, alternating: (compiled, level or "", compile)."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(None):
        prepared = {}
        for name, (compiled, level, mode) in variants.items():
            called, batch = make(compiled)
            debugger = make_debugger(directory, name, level, mode) if level else None
            time_step(called, batch, debugger)
            prepared[name] = (called, batch, debugger)
        spent: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, (called, batch, debugger) in prepared.items():
                PrecisionDebugger._current = debugger
                spent[name].append(time_step(called, batch, debugger))
    medians = {name: statistics.median(times) for name, times in spent.items()}
    for name, median in medians.items():
        print(f"{name:28} {1000 * median:8.2f} ms of CPU", flush=True)
    return medians


def compiled_if(wanted: bool, model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager") if wanted else model  # type: ignore[return-value]


def gpt(compiled: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return compiled_if(compiled, load_gpt().GPT(2)), torch.randint(1024, (2, 64))


def modules(compiled: bool) -> tuple[nn.Module, Tensor]:
    """A model of ten modules; or of the same modules, each a region."""
    torch.manual_seed(0)
    return nn.Sequential(*(compiled_if(compiled, nn.Linear(256, 256)) for _ in range(MODULES))), torch.randn(64, 256)


def compare_open_with_eager() -> None:
    variants = {"eager, mix": (False, "mix", "closed"), "open, mix": (True, "mix", "open")}
    medians = compare_costs(gpt, variants, ROUNDS)
    print(f"open / eager at mix: {medians['open, mix'] / medians['eager, mix']:.2f} (at most 2.0)")


def compare_region_with_module() -> None:
    """What msprobe adds to a step, by region and by module, both at L0."""
    variants = {
        "ten regions, bare": (True, "", ""),
        "ten regions, L0": (True, "L0", "closed"),
        "ten modules, bare": (False, "", ""),
        "ten modules, L0": (False, "L0", "closed"),
    }
    medians = compare_costs(modules, variants, 20 * ROUNDS)
    region, module = (
        1e6 * (medians[f"ten {kind}, L0"] - medians[f"ten {kind}, bare"]) / MODULES for kind in ("regions", "modules")
    )
    print(f"closed region: {region:.0f} us, module: {module:.0f} us, both at L0: {region / module:.2f} (at most 1)")


def measure_idle() -> None:
    """Compiled code in steps that are not collected, against no debugger: alternating blocks of steps."""
    called, batch = gpt(compiled=True)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(None):
        debugger = make_debugger(directory, "idle", "mix", "closed", step=[1_000_000])
        time_step(called, batch, None)
        ratios = []
        for _ in range(3 * ROUNDS):
            bare = sum(time_step(called, batch, None) for _ in range(3))
            idle = sum(time_step(called, batch, debugger) for _ in range(3))
            again = sum(time_step(called, batch, None) for _ in range(3))
            ratios.append(2 * idle / (bare + again))
    print(f"idle: {statistics.median(ratios):.3f} times the CPU time of the compiled step (1.00)", flush=True)


def count_runs() -> bool:
    """A fault in the GPT with four layers, found with at most twelve runs of the region."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = load_gpt()

    def wrong(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        last = [node for node in graph.graph.nodes if node.target is F.gelu][-1]
        last.target = lambda x, approximate="none": x * torch.sigmoid(1.702 * x)
        graph.recompile()
        return graph.forward

    with tempfile.TemporaryDirectory() as directory:
        answer = check_compiled(module.GPT(4), torch.randint(1024, (1, 16)), backend=wrong, directory=directory)
    region = answer.regions[0]
    named = answer.findings[0].code if answer.findings else "nothing"
    print(
        f"check of the 4-layer GPT ({region.nodes} nodes): {region.runs:.1f} runs of the region (at most 12): {named}"
    )
    return region.runs <= 12 and "gelu" in named


def main() -> int:
    compare_open_with_eager()
    compare_region_with_module()
    measure_idle()
    return 0 if count_runs() else 1


if __name__ == "__main__":
    sys.exit(main())
