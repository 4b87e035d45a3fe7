"""Which differences of two training loops are findings: some are only other ways to do the same."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.training import TrainingDifference
from msprobe.compare.origin.updates import both_update, same_gradients, updates_agree
from msprobe.compare.phases import Phase


def findings(training: Sequence[TrainingDifference], trace: Trace) -> dict[Phase, list[TrainingDifference]]:
    """By phase. If every update of a parameter agrees, only what clipping hides: what no result shows is a note. So is
    clipping if the optimizer received the same gradients, and a step that one run makes by hand."""
    hidden = updates_agree(trace) and not trace.introduced
    training = [one for one in training if hidden is (one.kind == "total norm")]
    seen = without_compiled(training, trace)
    left = [one for one in seen if not one.note_only]
    if same_gradients(trace):
        left = [one for one in left if one.kind != "clipping"]
    if both_update(trace):
        left = [one._replace(kind="class") if one.kind == "unseen step" else one for one in left]
    return {phase: [one for one in left if one.phase is phase] for phase in Phase}


def without_compiled(training: Sequence[TrainingDifference], trace: Trace) -> Sequence[TrainingDifference]:
    """Leaves out that an optimizer made no step, where it may have made it inside of a compiled region."""
    if not any(one.kind == "unseen step" for one in training):
        return training
    after = (match.target for (match, _), phase in zip(trace.groups, trace.phases) if phase is Phase.AFTER)
    if not any(call is not None and call.key.startswith("Compiled.") for call in after):
        return training
    return [one for one in training if one.kind != "unseen step"]
