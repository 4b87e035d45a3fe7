"""The members of a record in dump.json, and which of them are inputs, outputs or notes."""

from __future__ import annotations

INPUT_ARGS = "input_args"  # forward: positional arguments
INPUT_KWARGS = "input_kwargs"
PARAMETERS = "parameters"  # of a module
ATTRIBUTES = "attributes"  # arguments with which a MindSpore Primitive was created
INPUT = "input"  # backward: the gradients that come in
OUTPUT = "output"  # forward: what the call returned; backward: the gradients that go out
FORWARD_ARGS = "forward_args"  # in a backward record of overflow_check: the arguments of its forward call
FORWARD_KWARGS = "forward_kwargs"
RANDOM_STATE = "random_state"
AUTOCAST = "autocast"
SHARED_GRADIENT = "shared_gradient"
IS_RECOMPUTE = "is_recompute"
UNFINISHED = "unfinished"
RAISED = "raised"
OVERFLOW = "overflow"
STAGE = "stage"  # of a pipeline, from 0
MICROBATCH = "microbatch"  # of a pipeline, from 0
DAMAGE = "precision"  # in a tensor: what low-precision formats would do to it
DAMAGED = "damaged"  # a reader puts this in place of a damaged record

FLAGS = (IS_RECOMPUTE, UNFINISHED, RAISED, DAMAGED, STAGE, MICROBATCH)
# Inputs of a call.
RECEIVED = frozenset((INPUT_ARGS, INPUT_KWARGS, INPUT, PARAMETERS))
# Recorded so that the call can run again; not values of this call.
FOR_REPLAY = frozenset((FORWARD_ARGS, FORWARD_KWARGS, RANDOM_STATE, AUTOCAST, ATTRIBUTES))
