"""Every selector of config.json alone, at every level, for every task, on PyTorch (tests/selectors_table.py says what
each selects)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import configured
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger
from selectors_table import GRADIENTS, MODES, Records, Selector, assert_selected, by_list, by_scope, listed, marks_of

TASKS = ("statistics", "tensor", "structure")


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Half(), Half()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.norm(self.second(F.relu(self.first(x))))).mean()


MODULES = [
    by_list("a full name", "Module.second.fc.Linear.forward.0"),
    by_list("a call of a module and what runs in it", "Module.second.Half.forward.0"),
    by_list("a backward", "Module.first.Half.backward.0"),
    by_list("a module", "Module.first.Half"),
    by_list("a part", "fc"),
    by_list("an expression", r"name-regex(Module\.\w+\.act.*)"),
    by_scope("forward", "Module.first.act.Tanh.forward.0", "Module.second.fc.Linear.forward.0"),
    by_scope("one call", "Module.second.Half.forward.0", "Module.second.Half.forward.0"),
    by_scope("backward", "Module.norm.LayerNorm.backward.0", "Module.second.fc.Linear.backward.0"),
    by_scope("from forward to backward", "Module.norm.LayerNorm.forward.0", "Module.norm.LayerNorm.backward.0"),
    *MODES,
]
APIS = [
    by_list("a full name of an API", "Functional.relu.0.forward"),
    by_list("a backward of an API", "Torch.exp.0.backward"),
    by_list("a call of an API", "Functional.linear.1"),
    by_list("a part of an API", "tanh"),
    by_list("an expression for APIs", r"name-regex(.*\.(relu|exp)\.)"),
    by_scope("forward of APIs", "Functional.relu.0.forward", "Torch.exp.0.forward"),
    by_scope("one call of an API", "Functional.relu.0.forward", "Functional.relu.0.forward"),
    by_scope("backward of APIs", "Torch.exp.0.backward", "Functional.relu.0.backward"),
    by_scope("from forward to backward of APIs", "Torch.exp.0.forward", "Torch.exp.0.backward"),
]
KERNELS = [
    by_list("a full name", "Aten.addmm.default.1.forward"),
    by_list("a backward", "Aten.tanh_backward.default.0.backward"),
    by_list("a part", "addmm"),
    by_list("an expression", r"name-regex(Aten\.(exp|tanh)\.)"),
    by_list("a module and what runs in it", "Module.second.Half.forward.0"),
    by_list("an API and what runs in it", "Functional.relu.0.forward"),
    Selector("scope: one API", {"scope": ["Functional.linear.1"]}, listed("Functional.linear.1")),
    *MODES,
]
TABLE = {"L0": MODULES, "L1": [*APIS, *MODES], "mix": [*MODULES, *APIS], "L2": KERNELS}
CASES = [
    pytest.param(level, task, selector, id=f"{level}-{task}-{selector.label}", marks=marks_of(task, selector))
    for level, selectors in TABLE.items()
    for task in TASKS
    for selector in selectors
    if not (task == "structure" and "data_mode" in selector.section)
]


class Runs:
    """One network; a run of it without a selector is kept."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._full: dict[tuple[str, str], Records] = {}

    def full(self, level: str, task: str) -> Records:
        if (level, task) not in self._full:
            self._full[level, task] = self.run(self._top / f"{level}-{task}", level, task, {})
        return self._full[level, task]

    def run(self, path: Path, level: str, task: str, section: Any) -> Records:
        torch.manual_seed(0)
        net = Net()
        debugger = PrecisionDebugger(configured(path, level, task, section))
        debugger.start(net)
        net(torch.randn(2, 4)).backward()
        debugger.stop()
        debugger.step()
        debugger._lifecycle.close()
        PrecisionDebugger._current = None
        directory = path / "dump" / "step0" / "rank"
        assert not (directory / "dump_error_info.log").exists()
        found = Records(directory)
        if "scope" in section:  # the gradients of parameters come in the middle of the backward on PyTorch
            found.names = [name for name in found.names if not name.endswith(GRADIENTS)]
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize(("level", "task", "selector"), CASES)
def test_a_selector_selects_what_it_means(
    tmp_path: Path, runs: Runs, logged: Any, level: str, task: str, selector: Selector
) -> None:
    full = runs.full(level, task)
    assert selector.names(full), "the selector selects nothing"
    assert_selected(runs.run(tmp_path, level, task, selector.section), full, selector, task)
    assert not logged("matched no call")
    assert not logged("has no effect")


STEPS = [
    pytest.param(level, task, marks=[pytest.mark.slow] if task in ("tensor", "structure") else [])
    for level in TABLE
    for task in (*TASKS, "overflow_check", "free_benchmark")
    if task in TASKS or (level == "L1" if task == "free_benchmark" else level != "L2")
]


def three_steps(path: Path, level: str, task: str, **keys: Any) -> list[int]:
    """The steps that left something behind."""
    sections = {"overflow_check": {"overflow_nums": -1}, "free_benchmark": {"pert_mode": "change_value"}}
    torch.manual_seed(0)
    net = Net()
    debugger = PrecisionDebugger(configured(path, level, task, sections.get(task), **keys))
    for _ in range(3):
        debugger.start(net)
        (net(torch.randn(2, 4)) * (torch.inf if task == "overflow_check" else 1)).backward()
        debugger.stop()
        debugger.step()
    if task == "free_benchmark":
        table = path / "dump" / "free_benchmark.csv"
        found = {int(line.split(",")[3]) for line in table.read_text().splitlines()[1:]} if table.exists() else set()
    else:
        found = {int(one.parent.parent.name[4:]) for one in path.glob("**/dump.json") if json.loads(one.read_text())}
    debugger._lifecycle.close()
    PrecisionDebugger._current = None
    return sorted(found)


@pytest.mark.parametrize(("level", "task"), STEPS)
def test_step_and_rank_select_alone(tmp_path: Path, logged: Any, level: str, task: str) -> None:
    assert three_steps(tmp_path / "all", level, task) == [0, 1, 2]
    assert three_steps(tmp_path / "some", level, task, step=[1]) == [1]
    assert three_steps(tmp_path / "rank", level, task, rank=[0]) == [0, 1, 2]
    assert not logged("this process is rank")
    assert three_steps(tmp_path / "none", level, task, rank=[1]) == []
    assert logged("this process is rank 0, and the configuration collects rank [1]")
