"""An open call and its arguments: unchanged copies, and weak references while the call continues after it returned."""

from __future__ import annotations

import math
import weakref

import torch

from msprobe.pytorch.tasks.overflow_inspector import TorchTensorInspector
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.stats import STATS
from msprobe.stats.finiteness import FINITE, INFINITE, NAN
from msprobe.tasks.overflow_check.open_calls import OpenCall, numbers_state

INSPECTOR = TorchTensorInspector(TensorTexts(STATS, None))


def test_a_released_call_keeps_no_tensor_of_the_scripts():
    tensor, listed = torch.ones(3), torch.zeros(2)
    call = OpenCall(([listed], tensor, 5), {"group": None})
    call.release(INSPECTOR.hold)
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
    assert not call.restore()
    (kept, ones, five), named = call.original()
    assert kept[0] is listed
    assert torch.equal(ones, torch.ones(3))
    assert (five, named) == (5, {"group": None})


def test_arguments_that_are_still_alive_are_complete():
    tensor = torch.ones(3)
    call = OpenCall((tensor,), {})
    call.release(INSPECTOR.hold)
    assert call.restore()
    assert call.original()[0][0] is tensor


def test_a_copy_replaces_what_the_call_writes_until_its_end():
    tensor = torch.full((3,), 2.0)
    call = OpenCall((tensor,), {"op": [tensor]})
    call.copies = {id(tensor): INSPECTOR.copy(tensor)}
    call.release(INSPECTOR.hold)
    tensor += 1
    assert call.restore()
    assert torch.equal(call.original()[0][0], torch.full((3,), 2.0))


def test_numbers_among_the_arguments_have_a_state():
    assert numbers_state((1.0, [2, {"fill": 3.0}])) == FINITE
    assert numbers_state((1.0, [2, {"fill": -math.inf}])) == INFINITE
    assert numbers_state((math.inf, math.nan)) == NAN
