"""Planted faults of low-precision health, each named at the right step and target; the same training without them."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import sick_attention as sick
import torch

from msprobe.pytorch.emulation.linear import emulating
from msprobe.stats.formats import BY_NAME, emulate
from msprobe.watch.alarms.detector import Detector
from msprobe.watch.alarms.frame import Rows, frame_of
from msprobe.watch.health import put_damage
from msprobe.watch.reading.run import Run
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import GRAD_LOCAL, Figures, Target, quantised_kind

K = sick.K
LOGITS = {"targets": ["attention_logits"], "attention_logits": {"exact_every": 2}}
BOUNDS = {"targets": ["attention_logits"], "attention_logits": {"exact_every": 0}}
OUTLIERS = {"targets": ["outliers"]}


def formats(*names, every=2):
    return {"targets": ["quantisation"], "quantisation": {"formats": list(names), "every": every}}


FAULTS = {
    "logit_growth": (sick.large_queries, LOGITS, "attention_logits/blocks.1.head", "largest logit of"),
    "logit_growth, bound": (sick.large_queries, BOUNDS, "attention_logits/blocks.1.head", "a bound from the norms"),
    "massive_activation": (sick.massive_channel, OUTLIERS, "outliers/blocks.0.down", "times the median"),
    "scale_jump": (
        sick.jumping_scale,
        formats("mxfp8"),
        "quantisation.mxfp8/blocks.1.down.input",
        "times all before it",
    ),
    "underflow": (
        sick.tiny_loss,
        formats("fp16"),
        "quantisation.fp16/",
        "in fp16 has 100% of its elements that become zero",
    ),
    "noise_floor": (sick.tiny_loss, formats("fp16"), "quantisation.fp16/", "rounding adds noise of about"),
    "saturation": (
        sick.large_activations,
        formats("fp16"),
        "quantisation.fp16/blocks.1.down.input",
        "at or above the largest number",
    ),
}


def alarms_of(path):
    run = Run(path)
    found = run.alarms()
    run.close()
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_at_its_step(name, tmp_path):
    plant, config, target, words = FAULTS[name]
    rule = name.partition(",")[0]
    sick.run(tmp_path, plant, **config)
    found = alarms_of(tmp_path)
    assert found, "no alarm"
    assert min(alarm.step for alarm in found) == K, found[0].sentence
    mine = [alarm for alarm in found if alarm.rule == rule]
    assert mine, [one.sentence for one in found]
    assert mine[0].target.startswith(target)
    assert words in mine[0].sentence


def test_a_loss_scale_that_collapses_is_named(tmp_path):
    sick.run(tmp_path, sick.overflowing_loss, scaler=torch.amp.GradScaler("cpu"))
    mine = [alarm for alarm in alarms_of(tmp_path) if alarm.rule == "loss_scale"]
    assert [(alarm.step, alarm.target) for alarm in mine] == [(K, "scale")]
    assert "collapsed to 256 from 6.554e+04" in mine[0].sentence


def test_a_scale_that_settles_in_the_first_steps_is_healthy(tmp_path):
    def halves_at_first(training, step):
        training.factor = float("inf") if step < 12 else 1.0

    sick.run(tmp_path, halves_at_first, scaler=torch.amp.GradScaler("cpu"))
    assert [alarm.sentence for alarm in alarms_of(tmp_path) if alarm.rule == "loss_scale"] == []


@contextlib.contextmanager
def precision(name):
    """Trains in float32, in bfloat16, or with Linear in emulated mxfp8. Long runs: benchmarks/watch_health.py"""
    if name == "bf16":
        with torch.autocast("cpu", torch.bfloat16):
            yield
    elif name == "mxfp8":
        with emulating(BY_NAME[name]):
            yield
    else:
        yield


@pytest.mark.parametrize("name", ["fp32", "bf16", "mxfp8"])
def test_the_same_training_without_faults_has_no_alarm(name, tmp_path):
    quantisation = {"formats": ["fp16", "fp8-e4m3", "mxfp8"], "every": 4}
    targets = ["weight", "grad", "output", *sick.HEALTH]
    with precision(name):
        sick.run(tmp_path, steps=60, targets=targets, quantisation=quantisation, scaler=torch.amp.GradScaler("cpu"))
    assert [alarm.sentence for alarm in alarms_of(tmp_path)] == []


def detect(kinds, steps, figures, **settings):
    """The alarms of a detector that sees `figures(step)`: the figures of each target."""
    rows = Rows()
    for kind, name in kinds:
        rows.add(Target(kind, name))
    detector, alarms = Detector(settings), []
    for step in range(steps):
        found = StepFigures(len(kinds))
        for row, values in enumerate(figures(step)):
            found[row] = Figures(*values, *[math.nan] * (9 - len(values)))
        alarms += detector.look(frame_of(step, rows, found))
    return alarms


def test_a_model_that_has_large_logits_from_the_start_is_healthy():
    for early, expected in ((500.0, []), (20.0, ["logit_growth"])):
        alarms = detect([("attention_logits", "a.head0")], 40, lambda step, e=early: [(0, 600.0 if step > 20 else e)])
        assert [alarm.rule for alarm in alarms] == expected


def test_a_model_that_has_massive_activations_from_the_start_is_healthy():
    for early, expected in ((5e3, []), (5.0, ["massive_activation"])):
        alarms = detect([("outliers", "a")], 40, lambda step, e=early: [(5e3 if step > 20 else e, 5e3, 1.0)])
        assert [alarm.rule for alarm in alarms] == expected


def test_large_outliers_of_small_numbers_are_no_massive_activations():
    assert detect([("outliers", "a")], 40, lambda step: [(5e3 if step > 20 else 5.0, 50.0, 0.01)]) == []


def test_the_threshold_of_each_rule_is_used_and_false_switches_it_off():
    cases = {
        "logit_growth": ([("attention_logits", "a")], lambda step: [(0, 600.0 if step > 20 else 20.0)], 700),
        "massive_activation": ([("outliers", "a")], lambda step: [(5e3 if step > 20 else 5.0, 5e3, 1.0)], 6000),
        "scale_jump": ([("quantisation.mxfp8", "a.input")], lambda step: [(1.0, 1e3 if step > 30 else 1.0)], 2000),
    }
    for rule, (kinds, figures, high) in cases.items():
        assert [one.rule for one in detect(kinds, 40, figures)] == [rule]
        assert detect(kinds, 40, figures, **{rule: high}) == [] == detect(kinds, 40, figures, **{rule: False})


@pytest.mark.parametrize("form", ["mxfp8", "nvfp4", "fp8-e5m2"])
@pytest.mark.parametrize("rows", [32, 512])
def test_the_noise_of_a_product_is_estimated_from_its_factors(form, rows):
    """The rule fires if the true noise of the product is larger than the gradient, and not if it is far smaller."""
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(rows, width)).astype(np.float32) for width in (48, 32))
    exact = g.T.astype(np.float64) @ x
    rounded = emulate(g.T, BY_NAME[form]) @ emulate(x.T, BY_NAME[form]).T
    noise = float(np.linalg.norm(rounded - exact))
    kind = quantised_kind(form)
    for share, fires in ((1.2, True), (2.4, False)):
        targets = [(GRAD_LOCAL, "fc.weight"), (kind, "fc.input"), (kind, "fc.output_grad")]
        table = StepFigures(3)
        put_damage(x, form, False, table, 1)
        put_damage(g, form, False, table, 2)
        figures = [(share * noise,), table[1], table[2]]
        rules = {alarm.rule for alarm in detect(targets, 5, lambda step, figures=figures: figures)}
        assert ("noise_floor" in rules) is fires
