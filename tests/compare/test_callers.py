"""The lines that call the function with the line of the origin: the fault is often there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable

import torch
from flow_runs import run, seeded, square
from torch import nn

from msprobe.compare import compare
from msprobe.compare.calls import Call, Match
from msprobe.compare.origin.source import caller_lines
from msprobe.report.comparison_terminal import answer


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def mix(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x) * scale))


class Right(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, 2.0)


class Wrong(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, 2.5)


def lines(found: list[str], label: str) -> list[str]:
    start = next((place for place, line in enumerate(found) if line.startswith(f"  {label:<7} ")), None)
    if start is None:
        return []
    more = [line for line in found[start + 1 :] if line.startswith(" " * 10)]
    return [line[10:] for line in (found[start], *more)]


def test_the_answer_has_the_lines_that_call_the_function_innermost_first(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "wrong", seeded(Wrong), square), run(tmp_path / "right", seeded(Right), square))
    assert found.origin is not None
    assert str(found.origin.source).endswith(" in mix")
    inner, loss = found.origin.callers[:2]
    assert inner.endswith(" in forward: return self.mix(x, 2.5)")
    assert loss.endswith(" in square: return model(x).square().mean()")
    assert len(found.origin.callers) == 3
    assert found.origin.golden_callers[0].endswith(" in forward: return self.mix(x, 2.0)")
    assert found.origin.is_called_differently
    shown = lines(answer(found), "called")
    assert shown[0] == f"target: at {inner}"
    assert shown[3] == f"golden: at {found.origin.golden_callers[0]}"
    told = json.loads(json.dumps(found.summary()))["origin"]
    assert told["callers"] == list(found.origin.callers)


def test_callers_that_are_the_same_stand_once(tmp_path: Path) -> None:
    def scaled(by: float) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
        return lambda model, x: (model(x) * by).mean()

    found = compare(
        run(tmp_path / "wrong", seeded(Right), scaled(2.0)), run(tmp_path / "right", seeded(Right), scaled(1.0))
    )
    assert found.origin is not None
    assert not found.origin.is_called_differently
    shown = lines(answer(found), "called")
    assert shown[0] == f"at {found.origin.callers[0]}"
    assert not any(line.startswith("golden: at ") for line in shown)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)) * 2)


def test_a_model_in_place_of_one_that_is_not_watched_is_named_where_it_is_called(tmp_path: Path) -> None:
    torch.manual_seed(1)
    reference = Tied()

    def pulled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        far = model(x)
        return (model(x) - far.detach() + 1).square().mean()

    def right(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        far = reference(x)
        return (model(x) - far.detach() + 1).square().mean()

    golden = run(tmp_path / "right", seeded(Tied), right)
    found = compare(run(tmp_path / "wrong", seeded(Tied), pulled), golden)
    assert found.origin is not None
    assert found.origin.sentence.startswith("the target runs the model that was passed to start() where the golden run")
    assert any("far = model(x), the golden run at" in line for line in found.origin.evidence)
    assert str(found.origin.source).endswith(" in pulled")
    assert compare(run(tmp_path / "same", seeded(Tied), right), golden).verdict == "same"


def test_what_starts_the_script_is_no_caller() -> None:
    stack = [
        "File /home/you/train.py, line 9, in forward, \n return x * 2",
        "File /home/you/train.py, line 20, in <module>, \n loss = model(x)",
        "File /home/you/.venv/bin/msprobe, line 6, in <module>, \n sys.exit(main())",
    ]
    made = Call("Tensor.__mul__.0.forward", "api", "Tensor.__mul__", 0, "forward", None, 0, False, {})
    stacks = ({made.name: stack}, {made.name: stack})
    callers, _ = caller_lines(stacks, Match(made, made, "exact", 1.0), ("/home/you/train.py:9 in forward",) * 2)
    assert callers == ("/home/you/train.py:20 in <module>: loss = model(x)",)
