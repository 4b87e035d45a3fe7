"""Every selector of config.json alone, at every level, in every mode, for every task, on MindSpore
(tests/selectors_table.py says what each selects). Graph mode at level L2 is in test_graph_kernels.py, the kernels of
compiled regions in test_region_kernels.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops
from mscollecting import configured
from msmodels import made, tensor

from msprobe.mindspore import PrecisionDebugger
from selectors_table import MODES, Records, Selector, assert_selected, by_list, by_scope, marks_of

DYNAMIC, JIT, GRAPH = "dynamic", "jit", "graph"
TASKS = ("statistics", "tensor", "structure")


class Half(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.act = nn.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


class CompiledHalf(Half):
    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


class Net(nn.Cell):
    def __init__(self, second: type[Half] = Half) -> None:
        super().__init__()
        self.first = Half()
        self.second = second()
        self.norm = nn.LayerNorm([4])

    def construct(self, x: Tensor) -> Tensor:
        return ops.exp(self.norm(self.second(ops.relu(self.first(x))))).mean()


class CompiledNet(Net):
    def __init__(self) -> None:
        super().__init__(CompiledHalf)


CELLS = [
    by_list("a full name", "Cell.second.fc.Dense.forward.0"),
    by_list("a call of a Cell and what runs in it", "Cell.second.Half.forward.0"),
    by_list("a backward", "Cell.first.Half.backward.0"),
    by_list("a Cell", "Cell.first.Half"),
    by_list("a part", "fc"),
    by_list("an expression", r"name-regex(Cell\.\w+\.act.*)"),
    by_scope("forward", "Cell.first.act.Tanh.forward.0", "Cell.second.fc.Dense.forward.0"),
    by_scope("one call", "Cell.second.Half.forward.0", "Cell.second.Half.forward.0"),
    by_scope("backward", "Cell.norm.LayerNorm.backward.0", "Cell.second.fc.Dense.backward.0"),
    by_scope("from the forward to the backward", "Cell.norm.LayerNorm.forward.0", "Cell.norm.LayerNorm.backward.0"),
    *MODES,
]
APIS = [
    by_list("a full name", "Functional.relu.0.forward"),
    by_list("a backward", "Functional.exp.0.backward"),
    by_list("a call", "Primitive.matmul.MatMul.1"),
    by_list("a part", "tanh"),
    by_list("an expression", r"name-regex(.*\.(relu|exp)\.)"),
    by_scope("forward", "Functional.relu.0.forward", "Functional.exp.0.forward"),
    by_scope("one backward", "Functional.relu.0.backward", "Functional.relu.0.backward"),
    by_scope("backward", "Functional.exp.0.backward", "Functional.relu.0.backward"),
    by_scope("from the forward to the backward", "Functional.exp.0.forward", "Functional.exp.0.backward"),
    *MODES,
]
KERNELS = [
    by_list("a full name", "Kernel.MatMul.1.forward"),
    by_list("a backward", "Kernel.BiasAdd.1.backward"),
    by_list("a part", "MatMul"),
    by_list("an expression", r"name-regex(Kernel\.(Exp|Tanh)\.)"),
    by_list("a Cell and what runs in it", "Cell.second.Half.forward.0"),
    by_list("an API and what runs in it", "Functional.relu.0.forward"),
    by_scope("forward", "Kernel.MatMul.0.forward", "Kernel.BiasAdd.0.forward"),
    by_scope("one call", "Kernel.Exp.0.forward", "Kernel.Exp.0.forward"),
    by_scope("backward", "Kernel.BiasAdd.1.backward", "Kernel.BiasAdd.0.backward"),
    by_scope("from the forward to the backward", "Kernel.Exp.0.forward", "Kernel.LayerNorm.0.backward"),
    *MODES,
]
# The second half is compiled: its records are in graph/, those of the rest in pynative/; at L1 and L2 it is one record.
COMPILED_CELLS = [
    by_list("a full name in the graph", "Cell.second.fc.Dense.forward.0"),
    by_list("a full name outside", "Cell.first.fc.Dense.forward.0"),
    by_list("a part in both", "fc"),
    by_list("an expression", r"name-regex(Cell\.\w+\.act.*)"),
    by_list("a compiled Cell", "Cell.second.CompiledHalf"),
    *MODES,
]
COMPILED_REGION = [
    by_list("a region", "Jit.CompiledHalf.0"),
    by_list("an expression", r"name-regex(Jit\..*backward)"),
    by_scope("to a region", "Functional.relu.0.forward", "Jit.CompiledHalf.0.forward"),
    by_scope("from a region", "Jit.CompiledHalf.0.backward", "Functional.relu.0.backward"),
    *MODES,
]
TABLE = {
    (DYNAMIC, "L0"): CELLS,
    (DYNAMIC, "L1"): APIS,
    (DYNAMIC, "mix"): [*CELLS, *APIS],
    (DYNAMIC, "L2"): KERNELS,
    (JIT, "L0"): COMPILED_CELLS,
    (JIT, "L1"): COMPILED_REGION,
    (JIT, "mix"): [*COMPILED_CELLS, by_list("a full name of an API", "Functional.relu.0.forward")],
    (GRAPH, "L0"): CELLS,
}
CASES = [
    pytest.param(
        mode, level, task, selector, id=f"{mode}-{level}-{task}-{selector.label}", marks=marks_of(task, selector)
    )
    for (mode, level), selectors in TABLE.items()
    for task in TASKS
    for selector in selectors
    if not (task == "structure" and "data_mode" in selector.section)
]


@pytest.fixture(scope="module", autouse=True)
def a_graph_has_run() -> None:
    """What this process compiles is not dumped (test_region_kernels.py has that)."""

    @ms.jit
    def small(x: Tensor) -> Tensor:
        return x + 1

    small(Tensor(1.0))


class Runs:
    """One network under each mode; a run of it without a selector is kept."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._full: dict[tuple[str, str, str], dict[str, Records]] = {}

    def full(self, mode: str, level: str, task: str) -> dict[str, Records]:
        key = (mode, level, task)
        if key not in self._full:
            self._full[key] = self.run(self._top / "-".join(key), mode, level, task, {})
        return self._full[key]

    def run(self, path: Path, mode: str, level: str, task: str, section: Any) -> dict[str, Records]:
        """The records of each directory: a compiled Cell splits the dump."""
        ms.set_context(mode=ms.GRAPH_MODE if mode == GRAPH else ms.PYNATIVE_MODE)
        net = made(CompiledNet if mode == JIT else Net)
        train = ms.value_and_grad(net, None, net.trainable_params())
        debugger = PrecisionDebugger(configured(path, level, task, section))
        debugger.start(net)
        train(tensor(2, 4))
        debugger.stop()
        debugger.step()
        debugger._lifecycle.close()
        PrecisionDebugger._current = None
        assert not list(path.rglob("dump_error_info.log"))
        top = path / "dump"
        return {str(one.relative_to(top)): Records(one) for one in sorted(top.glob("**/rank"))}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize(("mode", "level", "task", "selector"), CASES)
def test_a_selector_selects_what_it_means(
    tmp_path: Path, runs: Runs, logged: Any, mode: str, level: str, task: str, selector: Selector
) -> None:
    full = runs.full(mode, level, task)
    found = runs.run(tmp_path, mode, level, task, selector.section)
    assert any(selector.names(records) for records in full.values()), "the selector selects nothing"
    for directory, records in full.items():
        if selector.names(records):
            assert_selected(found[directory], records, selector, task)
        else:
            assert directory not in found or not found[directory].names
    assert not logged("matched no call")
    assert not logged("has no effect")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("level", "forward", "backward"),
    [
        ("L0", ["Cell.first.act.Tanh.forward.0"], ["Cell.norm.LayerNorm.backward.0"]),
        (
            "mix",
            [
                "Primitive.tanh.Tanh.0.forward",
                "Cell.first.act.Tanh.forward.0",
                "Functional.relu.0.forward",
                "Jit.CompiledHalf.0.forward",
            ],
            [
                "Primitive.layer_norm.LayerNorm.0.backward",
                "Cell.norm.LayerNorm.backward.0",
                "Jit.CompiledHalf.0.backward",
            ],
        ),
    ],
)
def test_a_scope_goes_through_a_compiled_cell(
    tmp_path: Path, runs: Runs, level: str, task: str, forward: list[str], backward: list[str]
) -> None:
    scope = ["Cell.first.act.Tanh.forward.0", "Cell.second.fc.Dense.forward.0"]
    found = runs.run(tmp_path / "forward", JIT, level, task, {"scope": scope})
    assert found["pynative/step0/rank"].names == [*forward, "Cell.second.CompiledHalf.forward.0"]
    assert found["graph/step0/rank"].names == ["Cell.second.fc.Dense.forward.0", "Cell.second.CompiledHalf.forward.0"]
    scope = ["Cell.norm.LayerNorm.backward.0", "Cell.second.act.Tanh.backward.0"]
    found = runs.run(tmp_path / "backward", JIT, level, task, {"scope": scope})
    assert found["pynative/step0/rank"].names == [*backward, "Cell.second.CompiledHalf.backward.0"]
    names = ["Cell.second.act.Tanh.backward.0", "Cell.second.CompiledHalf.backward.0"]
    assert found["graph/step0/rank"].names == names


COLLECTING = [
    pytest.param(mode, level, task, marks=[pytest.mark.slow] if task in ("tensor", "structure") else [])
    for mode, level in [*TABLE, (JIT, "L2")]
    for task in ("statistics", "tensor", "structure", "overflow_check", "free_benchmark")
    if task in TASKS or (level == "L1" if task == "free_benchmark" else level != "L2" and mode != GRAPH)
]


class Overflowing(Net):
    """Each step overflows."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.exp(self.norm(self.second(ops.relu(self.first(x)))) * 1000).mean()


def three_steps(path: Path, mode: str, level: str, task: str, **keys: Any) -> list[int]:
    """The steps that left something behind."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == GRAPH else ms.PYNATIVE_MODE)
    sections = {"overflow_check": {"overflow_nums": -1}, "free_benchmark": {"pert_mode": "change_value"}}
    net = made({JIT: CompiledNet}.get(mode, Overflowing if task == "overflow_check" else Net))
    train = ms.value_and_grad(net, None, net.trainable_params())
    debugger = PrecisionDebugger(configured(path, level, task, sections.get(task), **keys))
    for _ in range(3):
        debugger.start(net)
        train(tensor(2, 4) * (1 if mode != JIT or task != "overflow_check" else float("inf")))
        debugger.stop()
        debugger.step()
    if task == "free_benchmark":
        table = path / "dump" / "free_benchmark.csv"
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        found = {int(line.split(",")[3]) for line in lines}
    else:
        found = {int(one.parent.parent.name[4:]) for one in path.glob("**/dump.json") if json.loads(one.read_text())}
    debugger._lifecycle.close()
    PrecisionDebugger._current = None
    return sorted(found)


@pytest.mark.parametrize(("mode", "level", "task"), COLLECTING)
def test_step_and_rank_select_alone(tmp_path: Path, logged: Any, mode: str, level: str, task: str) -> None:
    assert three_steps(tmp_path / "all", mode, level, task) == [0, 1, 2]
    assert three_steps(tmp_path / "some", mode, level, task, step=[1]) == [1]
    assert three_steps(tmp_path / "rank", mode, level, task, rank=[0]) == [0, 1, 2]
    assert not logged("this process is rank")
    assert three_steps(tmp_path / "none", mode, level, task, rank=[1]) == []
    assert not list((tmp_path / "none").glob("dump/**/dump.json"))
    assert logged("this process is rank 0, and the configuration collects rank [1]")
