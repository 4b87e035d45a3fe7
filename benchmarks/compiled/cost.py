"""The cost of collecting compiled code, as ratios of CPU times, and the runs of a check on the GPT with four layers.

python benchmarks/compiled/cost.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger, check_compiled

GPT = importlib.util.spec_from_file_location("gpt", Path(__file__).resolve().parents[1] / "models.py")
ROUNDS = 7


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


def compare_costs(make: Callable[[], tuple[nn.Module, Tensor]], variants: dict[str, tuple[bool, str, str]]) -> None:
    """Prints the median CPU time of each variant, alternating: (compiled, level or "", compile)."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(None):
        prepared = {}
        for name, (compiled, level, mode) in variants.items():
            model, batch = make()
            called = torch.compile(model, backend="aot_eager") if compiled else model
            debugger = make_debugger(directory, name, level, mode) if level else None
            time_step(called, batch, debugger)
            prepared[name] = (called, batch, debugger)
        spent: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(ROUNDS):
            for name, (called, batch, debugger) in prepared.items():
                PrecisionDebugger._current = debugger
                spent[name].append(time_step(called, batch, debugger))
    medians = {name: statistics.median(times) for name, times in spent.items()}
    for name, median in medians.items():
        print(f"{name:28} {1000 * median:8.1f} ms of CPU", flush=True)
    if "eager, mix" in medians:
        print(f"open / eager at mix: {medians['open, mix'] / medians['eager, mix']:.2f} (at most 2.0)")
    else:
        region = medians["closed region, mix"] - medians["compiled, bare"]
        module = medians["one module, L0"] - medians["one module, bare"]
        print(f"closed region: {1e6 * region:.0f} us, one module at L0: {1e6 * module:.0f} us")


def gpt() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return load_gpt().GPT(2), torch.randint(1024, (2, 64))


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def one() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return One(), torch.randn(64, 256)


def measure_idle() -> None:
    """Compiled code in steps that are not collected, against no debugger: alternating blocks of steps."""
    model, batch = gpt()
    called = torch.compile(model, backend="aot_eager")
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
    compare_costs(gpt, {"eager, mix": (False, "mix", "closed"), "open, mix": (True, "mix", "open")})
    compare_costs(
        one,
        {
            "compiled, bare": (True, "", ""),
            "closed region, mix": (True, "mix", "closed"),
            "one module, bare": (False, "", ""),
            "one module, L0": (False, "L0", "closed"),
        },
    )
    measure_idle()
    return 0 if count_runs() else 1


if __name__ == "__main__":
    sys.exit(main())
