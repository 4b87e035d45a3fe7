"""Planted sicknesses, each found at the right step and target, on both frameworks; healthy runs stay quiet."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field

import pytest

from msprobe.cli import main
from msprobe.watch.reading.run import Run

K = 60
STEPS = 110


@dataclass(frozen=True)
class Sickness:
    """`plant` is a function of the sick_* modules; no alarm may come before `step`, and one of
    `rules` must name `target`, at most `late` steps later."""

    plant: str
    rules: tuple[str, ...]
    target: str
    step: int = K
    late: int = 0
    config: dict = field(default_factory=dict)
    steps: int = STEPS
    options: dict = field(default_factory=dict)


OUTPUTS = {"targets": ["weight", "grad", "output"]}
STATE = {"targets": ["weight", "grad", "state"]}
FP8 = {**OUTPUTS, "low_precision": "fp8_e4m3", "alarms": {"underflow": False}}
SICKNESSES = [
    Sickness("exploding_layer", ("weight_outside",), "blocks.1.fc.weight"),
    Sickness("exploding_layer", ("spike",), "output/blocks.1.fc", config=OUTPUTS),
    Sickness("dead_relu", ("zero",), "output/blocks.1", config=OUTPUTS),
    Sickness("high_learning_rate", ("update_large", "loss_spike", "spike"), "", late=2),
    Sickness("weight_decay", ("weight_decay",), "weight", late=3, steps=150),
    Sickness("frozen_block", ("frozen",), "weight/blocks.1.fc"),
    Sickness("underflow", ("underflow",), "grad/", config={"low_precision": "fp16"}),
    Sickness("saturation", ("saturation",), "output/blocks.1", config=FP8),
    Sickness("nan_data", ("nan",), "output/blocks.0.fc", config=OUTPUTS),
    Sickness("nan_data", ("nan",), ""),
    Sickness("adam_epsilon", ("nan",), "blocks.0.fc.weight", step=0, steps=5, options={"dead_column": True}),
    Sickness("clipped", ("clipped",), "grad/", late=1),
    Sickness("router_collapse", ("zero",), "moe."),
    Sickness("vanishing", ("vanishing",), "blocks."),
    Sickness("lost_state", ("state_decay",), "state.exp_avg_sq/blocks.1", config=STATE),
]
FRAMEWORKS = ("torch", "mindspore")


def alarms_of(path):
    run = Run(path)
    found = run.alarms()
    run.close()
    return found


QUICK = ("adam_epsilon",)
"""What `make test` runs on MindSpore too: there the threads of the runtime make a hundred steps expensive."""


def cases():
    for case in SICKNESSES:
        for framework in FRAMEWORKS:
            slow = framework == "mindspore" and case.plant not in QUICK
            marks = [pytest.mark.slow] if slow else []
            yield pytest.param(case, framework, id=f"{case.plant}-{case.rules[0]}-{framework}", marks=marks)


@pytest.mark.parametrize(("case", "framework"), cases())
def test_a_planted_sickness_is_named(case, framework, tmp_path):
    sick = importlib.import_module(f"sick_{framework}")
    sick.run(tmp_path, getattr(sick, case.plant), case.steps, case.config, **case.options)
    found = alarms_of(tmp_path)
    assert found, "no alarm"
    shown = [f"{one.step} {one.rule} {one.target}: {one.sentence}" for one in found]
    last = case.step + case.late
    assert found[0].step >= case.step, shown
    named = [one for one in found if one.rule in case.rules and case.target in one.target and one.step <= last]
    assert named, shown


@pytest.mark.parametrize("framework", ["torch", pytest.param("mindspore", marks=pytest.mark.slow)])
def test_the_weight_that_the_script_changed_comes_before_what_it_caused(framework, tmp_path):
    sick = importlib.import_module(f"sick_{framework}")
    sick.run(tmp_path, sick.exploding_layer, STEPS, {})
    found = [one for one in alarms_of(tmp_path) if one.step == K]
    assert (found[0].rule, found[0].target) == ("weight_outside", "weight/blocks.1.fc.weight"), found
    assert "something outside the optimizer changed it" in found[0].sentence
    assert len(found) > 1


@pytest.mark.parametrize("framework", ["torch", pytest.param("mindspore", marks=pytest.mark.slow)])
@pytest.mark.parametrize("every", [1, 10])
def test_a_healthy_run_has_no_alarm(framework, every, tmp_path):
    sick = importlib.import_module(f"sick_{framework}")
    sick.run(tmp_path, sick.healthy, 300, {"every": every, "targets": "all"})
    assert [alarm.sentence for alarm in alarms_of(tmp_path)] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_out_of_sync_is_named(framework, tmp_path, monkeypatch):
    sick = importlib.import_module(f"sick_{framework}")

    def push(training, step):
        if step == 7 and rank == 2:
            sick.exploding_layer(training, sick.K)

    for rank in range(3):
        _be_rank(monkeypatch, rank)
        sick.run(tmp_path, push, 12, {"alarms": {"update_large": False, "spike": False}})
    found = [alarm for alarm in alarms_of(tmp_path) if alarm.rule == "ranks"]
    assert (found[0].step, found[0].rank) == (7, 2)
    assert any("blocks.1.fc.weight" in alarm.target for alarm in found if alarm.step == 7)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_reduction_is_seen_at_the_first_step(framework, tmp_path, monkeypatch, capsys):
    sick = importlib.import_module(f"sick_{framework}")

    def other_data(training, step):
        if step == 0 and rank == 1:
            training.data = type(training)(seed=5).data

    for rank in range(2):
        _be_rank(monkeypatch, rank)
        sick.run(tmp_path, other_data, 4, {})
    assert main(["watch", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[0])["alarms"]
    assert (found[0]["step"], found[0]["rule"]) == (0, "ranks")
    assert found[0]["target"].startswith("weight/")
    assert found[0]["message"]["id"] == "alarm.ranks"
    assert found[0]["message"]["arguments"]["others"]["text"] == f"rank {1 - found[0]['rank']}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_that_agree_are_not_named(framework, tmp_path, monkeypatch):
    sick = importlib.import_module(f"sick_{framework}")
    for rank in range(2):
        _be_rank(monkeypatch, rank)
        sick.run(tmp_path, sick.healthy, 4, {})
    assert alarms_of(tmp_path) == []


def test_ranks_that_have_other_weights_and_other_gradients_are_not_named(tmp_path, monkeypatch):
    """As with tensor parallelism: each rank has its part of a matrix."""
    sick = importlib.import_module("sick_torch")
    for rank in range(2):
        _be_rank(monkeypatch, rank)
        sick.run(tmp_path, sick.healthy, 4, {}, seed=rank)
    assert alarms_of(tmp_path) == []


def _be_rank(monkeypatch, rank):
    for name, value in (("RANK", rank), ("WORLD_SIZE", 3), ("RANK_ID", rank), ("MS_WORKER_NUM", 3)):
        monkeypatch.setenv(name, str(value))
