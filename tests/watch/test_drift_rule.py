"""The rule about norms that have moved far away from their early values, on norms made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe.watch.alarms.frame import Rows, frame_of
from msprobe.watch.alarms.history import History
from msprobe.watch.alarms.rules import Drift
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import Target

FAULT = 200


def look(learnt, grown):
    """The hits on three gradients: norm 1 at first, `learnt` from step 100 on, `grown` from the fault on."""
    rows, random = Rows(), np.random.default_rng(0)
    for name in ("first", "second", "third"):
        rows.add(Target("grad", name, 0, (4, 4)))
    rule, history, hits = Drift(1000.0), History(), []
    for step in range(320):
        norm = grown if step >= FAULT else learnt if step >= 100 else 1.0
        found = StepFigures(len(rows))
        for row in range(len(rows)):
            found[row] = (norm * 10 ** (0.02 * random.standard_normal()), 1, 0, 0, 0, 0, 0, np.nan, np.nan)
        frame = frame_of(step, rows, found)
        history.grow(len(rows))
        hits += [(step, hit.began) for hit in rule(frame, history)]
        history.add(step, frame.logs())
    return hits


@pytest.mark.parametrize("learnt", [1.0, 0.4, 0.01])
def test_the_step_is_right_also_where_the_norm_had_fallen_before_it(learnt):
    hits = look(learnt, 5000.0)
    assert [began for _, began in hits] == [FAULT] * 3


def test_the_step_is_right_long_after_it():
    """More steps than the history has lie between: 500 times at the fault, and above 1000 times 80 steps later."""
    rows = Rows()
    rows.add(Target("grad", "only", 0, (4, 4)))
    rule, history, hits = Drift(1000.0), History(), []
    for step in range(400):
        norm = 0.4 if step < FAULT else 500.0 if step < FAULT + 80 else 2000.0
        found = StepFigures(1)
        found[0] = (1.0 if step < 100 else norm, 1, 0, 0, 0, 0, 0, np.nan, np.nan)
        frame = frame_of(step, rows, found)
        history.grow(1)
        hits += [(step, hit.began) for hit in rule(frame, history)]
        history.add(step, frame.logs())
    assert [began for _, began in hits] == [FAULT]
    assert hits[0][0] > FAULT + 64


def test_a_norm_that_falls_does_not_drift():
    assert look(0.01, 0.001) == []
