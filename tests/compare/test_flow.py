"""Answers from the flow of values: what is harmless has evidence behind it, and a fault beside it is still named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flow_runs import Block, Doubled, Mine, Step, adam, run, said, seeded, small, square
from torch import nn
from written import call, scalar, tensor, write_dump

from msprobe.compare import Comparison, compare, excuses
from msprobe.compare.flow.graph import Graph
from msprobe.compare.origin.training import training_differences
from msprobe.dump.reader import open_dump


def test_an_optimizer_of_the_user_is_judged_by_its_updates(tmp_path: Path) -> None:
    def make(kind: type[torch.optim.SGD]) -> Any:
        return lambda parameters: kind(parameters, lr=0.1, momentum=0.9)

    golden = run(tmp_path / "golden", seeded(small), make=make(torch.optim.SGD))
    same = compare(run(tmp_path / "same", seeded(small), make=make(Mine)), golden)
    assert (same.verdict, same.origin) == ("same", None)
    assert "the optimizer is Mine, not SGD" in same.notes
    wrong = compare(run(tmp_path / "wrong", seeded(small), make=make(Doubled)), golden)
    effect = "the update of 2.weight differs for the same gradient: it is 2 times as large"
    assert said(wrong) == f"the optimizer is Doubled, not SGD; {effect}"


def by_hand(rate: float) -> Step:
    def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad

    return update


def test_an_update_by_hand_is_compared_with_sgd(tmp_path: Path) -> None:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    golden = run(tmp_path / "golden", seeded(small), make=make)
    assert compare(run(tmp_path / "same", seeded(small), update=by_hand(0.1)), golden).verdict == "same"
    wrong = compare(run(tmp_path / "wrong", seeded(small), update=by_hand(0.11)), golden)
    assert wrong.verdict == "differs"


@pytest.mark.parametrize("fault", [False, True])
def test_a_rewrite_is_harmless_and_hides_no_fault_behind_it(tmp_path: Path, fault: bool) -> None:
    def make(rewritten: bool) -> Callable[[], nn.Module]:
        other = "tanh" if rewritten and fault else "none"
        return lambda: nn.Sequential(*(Block(rewritten, other if i == 2 else "none") for i in range(4)))

    target, golden = run(tmp_path / "target", seeded(make(True))), run(tmp_path / "golden", seeded(make(False)))
    result = compare(target, golden)
    if not fault:
        assert said(result) == "same"
        return
    assert result.origin is not None
    assert result.origin.name == "Functional.gelu.2.forward"
    assert "approximate is 'tanh', not 'none'" in result.origin.sentence


def test_a_missing_term_of_the_loss_is_named(tmp_path: Path) -> None:
    def regularised(model: Any, x: torch.Tensor) -> torch.Tensor:
        return square(model, x) + 0.1 * model[2].weight.square().sum()

    result = compare(run(tmp_path / "t", seeded(small)), run(tmp_path / "g", seeded(small), loss=regularised))
    assert said(result) == "Tensor.__add__.0.forward is missing in the target"


class Split(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + self.bias


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_one_call_against_two_with_the_same_result(tmp_path: Path, factor: float) -> None:
    def make(kind: type[nn.Linear], factor: float = 1.0) -> Callable[[], nn.Module]:
        def model() -> nn.Module:
            net = nn.Sequential(kind(16, 32), nn.ReLU(), kind(32, 4))
            with torch.no_grad():
                net[2].bias.mul_(factor)
            return net

        return model

    target, golden = run(tmp_path / "t", seeded(make(Split, factor))), run(tmp_path / "g", seeded(make(nn.Linear)))
    result = compare(target, golden)
    if factor == 1.0:
        assert said(result) == "same"
    else:
        assert "bias" in said(result)


def test_an_average_taken_before_the_update_is_found(tmp_path: Path) -> None:
    def averaged(early: bool) -> Step:
        copies = [parameter.detach().clone() for parameter in seeded(small).parameters()]

        def average(model: nn.Module) -> None:
            with torch.no_grad():
                for copy, parameter in zip(copies, model.parameters()):
                    copy.lerp_(parameter, 0.1)

        def update(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
            if early:
                average(model)
            optimizer.step()
            if not early:
                average(model)

        return update

    golden = run(tmp_path / "golden", seeded(small), update=averaged(False))
    assert compare(run(tmp_path / "again", seeded(small), update=averaged(False)), golden).verdict == "same"
    result = compare(run(tmp_path / "target", seeded(small), update=averaged(True)), golden)
    assert "lerp_" in said(result)


class Residual(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.norm, self.act, self.inner = nn.LayerNorm(16), nn.ReLU(inplace=inplace), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.norm(x) * 1.0
        return kept + self.inner(self.act(kept))


def test_a_call_that_overwrites_what_is_read_later_is_named(tmp_path: Path) -> None:
    def make(inplace: bool) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(16, 16), Residual(inplace), nn.Linear(16, 4))

    result = compare(run(tmp_path / "t", seeded(make(True))), run(tmp_path / "g", seeded(make(False))))
    assert result.origin is not None
    assert result.origin.name == "Functional.relu.0.forward"
    assert "writes in place in the target" in result.origin.sentence
    assert not any("inplace" in note for note in result.notes)


def test_views_and_writes_are_edges_of_the_graph(tmp_path: Path) -> None:
    def item(value: float, number: int, memory: int) -> dict[str, Any]:
        return tensor(value, value_id=number, memory=memory)

    data = {
        "Functional.linear.0.forward": call(item(1.0, 0, 0), output=item(2.0, 1, 1)),
        "Tensor.mul_.0.forward": call(item(2.5, 2, 1), scalar(0.9), output=item(2.25, 3, 1)),  # of a view
        "Functional.relu.0.forward": call(item(2.2, 4, 1), output=item(2.2, 5, 2)),
    }
    groups = list(compare(write_dump(tmp_path / "a", data), write_dump(tmp_path / "b", data)).units[0].groups)
    graph = Graph(groups, golden=False, has_identity=True)
    made = graph.steps["Functional.linear.0.forward"].results[0].value
    (view,) = made.views
    assert [step.call.name for step in view.uses] == ["Tensor.mul_.0.forward"]
    written = graph.steps["Tensor.mul_.0.forward"].results[0].value
    assert [value.item and value.item["value_id"] for value in written.views] == [4]


RELU = {"Functional.relu.0.forward": call(tensor(4.0), output=tensor(5.0))}
FIRST = {"Functional.linear.0.forward": call(tensor(1.0), tensor(2.0), output=tensor(4.0))}


def pair(tmp_path: Path, target: dict[str, Any], golden: dict[str, Any]) -> Comparison:
    return compare(
        write_dump(tmp_path / "target", {**FIRST, **target, **RELU}),
        write_dump(tmp_path / "golden", {**FIRST, **golden, **RELU}),
    )


def test_a_lost_write_to_memory_that_outlives_the_step_is_named(tmp_path: Path) -> None:
    update = {"Tensor.mul_.0.forward": call(tensor(7.0), scalar(0.9), output=tensor(6.3))}
    result = pair(tmp_path, {}, update)
    assert said(result) == "Tensor.mul_.0.forward is missing in the target"


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_lists_and_loops_are_compared_by_what_they_write(tmp_path: Path, factor: float) -> None:
    def numbers(start: float) -> list[dict[str, Any]]:
        return [tensor(start + place, [4, place + 4]) for place in range(3)]

    before, gradients, after = numbers(30.0), numbers(50.0), numbers(70.0)
    wrong = [tensor(factor * (70.0 + place), [4, place + 4]) for place in range(3)]
    listed = {"input_args": [before, gradients], "input_kwargs": {"alpha": scalar(-0.1)}, "output": [wrong]}
    loop = {
        f"Tensor.add_.{i}.forward": call(before[i], gradients[i], alpha=scalar(-0.1), output=after[i]) for i in range(3)
    }
    result = pair(tmp_path, {"Torch._foreach_add_.0.forward": listed}, loop)
    assert result.verdict == ("same" if factor == 1.0 else "differs")


def test_a_write_to_a_different_tensor_differs_and_unwritten_memory_does_not(tmp_path: Path) -> None:
    def item(value: float, **more: Any) -> dict[str, Any]:
        return {"Tensor.__setitem__.0.forward": call(tensor(value, **more), scalar(0), scalar(1.0), output=None)}

    assert pair(tmp_path / "a", item(8.0), item(9.0)).verdict == "differs"
    scatter = [
        {
            "Tensor.scatter_.0.forward": call(
                tensor(value, uninitialised=True), scalar(0), tensor(4.0), output=tensor(value + 1, uninitialised=True)
            )
        }
        for value in (8.0, 9.0)
    ]
    assert pair(tmp_path / "b", *scatter).verdict == "same"


def test_a_difference_that_fades_is_not_compensated(tmp_path: Path) -> None:
    """The difference is small, and what follows agrees within rounding: this proves nothing."""
    chain = [
        {
            "Functional.gelu.0.forward": call(tensor(4.0), output=tensor(3.0 + off)),
            "Tensor.sum.0.forward": call(tensor(3.0 + off), output=tensor(600.0 * (1 + off * 1e-4))),
        }
        for off in (1e-3, 0.0)
    ]
    result = pair(tmp_path, *chain)
    assert result.origin is not None
    assert result.origin.name == "Functional.gelu.0.forward"


@pytest.mark.parametrize("name", sorted(excuses.RULES))
def test_a_rule_without_evidence_excuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def careless(case: excuses.Case) -> excuses.Excuse:
        return excuses._excuse(name, "because", ())

    monkeypatch.setattr(excuses, "RULES", {name: careless})
    result = pair(tmp_path, {"Torch.abs.0.forward": call(tensor(4.0), output=tensor(3.0))}, {})
    assert result.verdict != "same"
    assert all(row.excuse is None for _, row in result.rows())


def test_every_excuse_keeps_the_first_judgement_and_its_evidence(tmp_path: Path) -> None:
    def make(rewritten: bool) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(*(Block(rewritten, "none") for _ in range(2)))

    result = compare(run(tmp_path / "t", seeded(make(True))), run(tmp_path / "g", seeded(make(False))))
    excused = [row for _, row in result.rows() if row.excuse is not None]
    assert excused
    for row in excused:
        assert row.judgement.verdict != "pass"
        assert row.excuse.evidence
        assert all(one is not row for one in row.excuse.evidence)


@pytest.mark.parametrize("wrong", ["[3]", '{"a": 1}', '"x"', "null", "1e300"])
def test_numbers_of_values_that_are_no_numbers_are_left_out(tmp_path: Path, wrong: str) -> None:
    paths = [
        run(tmp_path / name, seeded(small), make=make) for name, make in (("target", torch.optim.SGD), ("golden", adam))
    ]
    file = next(paths[0].glob("step0/*/dump.json"))
    file.write_text(re.sub(r'"(value_id|memory)": ?\d+', rf'"\1": {wrong}', file.read_text()))
    assert compare(*paths).verdict == "differs"


def test_groups_of_an_optimizer_that_are_no_groups_are_left_out() -> None:
    steps = [[{"event": "optimizer_step", "type": "SGD", "groups": groups}] for groups in ([3, {"lr": 1}], [{"lr": 2}])]
    assert [str(one.sentence) for one in training_differences(*steps)] == ["SGD: lr is 1, not 2"]


def test_a_number_that_is_too_large_for_a_float_counts_as_none() -> None:
    events = [{"event": "scaler_step", "scale": 10**400}, {"event": "clip_grad_norm_end", "total_norm": 10**400}]
    assert training_differences(events, events) == []


def test_a_gradient_that_is_no_tensor_is_no_noise(tmp_path: Path) -> None:
    paths = [run(tmp_path / name, seeded(make)) for name, make in (("target", small), ("golden", lambda: small()[:2]))]
    file = next(paths[0].glob("step0/*/dump.json"))
    content = json.loads(file.read_text())
    gradients = [record for name, record in content["data"].items() if name.endswith("parameters_grad")]
    for record in gradients:
        record.update({key: [{"type": "int", "value": 3}] for key in record})
    assert gradients
    file.write_text(json.dumps(content))
    assert compare(*paths).verdict == "differs"


@pytest.mark.parametrize("wrong", [[3], {"a": 1}, 3, True])
def test_a_training_event_after_no_name_is_damage(tmp_path: Path, wrong: Any) -> None:
    paths = [run(tmp_path / name, seeded(small)) for name in ("target", "golden")]
    file = next(paths[0].glob("step0/*/training.json"))
    content = json.loads(file.read_text())
    next(event for event in content["events"] if event["event"] == "backward")["after"] = wrong
    file.write_text(json.dumps(content))
    assert compare(*paths).verdict != "differs"
    rank = open_dump(paths[0]).ranks[0]
    assert "1 event is damaged in training.json" in rank.troubles
