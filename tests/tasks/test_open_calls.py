"""An open call and its arguments: as they were, and weakly while it goes on behind the script's back."""

from __future__ import annotations

import math
import weakref

import torch

from msprobe.pytorch.overflow_eyes import TorchEyes
from msprobe.pytorch.tensors import TensorTexts
from msprobe.stats import STATS
from msprobe.tasks.looks import FINITE, INFINITE, NAN
from msprobe.tasks.open_calls import OpenCall, numbers_state

EYES = TorchEyes(TensorTexts(STATS, None))


def test_a_loosened_call_keeps_no_tensor_of_the_scripts():
    tensor, listed = torch.ones(3), torch.zeros(2)
    call = OpenCall(([listed], tensor, 5), {"group": None})
    call.loosen(EYES.hold)
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
    assert not call.tighten()
    (kept, ones, five), named = call.original()
    assert kept[0] is listed
    assert torch.equal(ones, torch.ones(3))
    assert (five, named) == (5, {"group": None})


def test_what_is_still_there_is_whole():
    tensor = torch.ones(3)
    call = OpenCall((tensor,), {})
    call.loosen(EYES.hold)
    assert call.tighten()
    assert call.original()[0][0] is tensor


def test_a_copy_stands_for_what_the_call_writes_until_its_end():
    tensor = torch.full((3,), 2.0)
    call = OpenCall((tensor,), {"op": [tensor]})
    call.copies = {id(tensor): EYES.copy(tensor)}
    call.loosen(EYES.hold)
    tensor += 1
    assert call.tighten()
    assert torch.equal(call.original()[0][0], torch.full((3,), 2.0))


def test_numbers_among_the_arguments_have_a_state():
    assert numbers_state((1.0, [2, {"fill": 3.0}])) == FINITE
    assert numbers_state((1.0, [2, {"fill": -math.inf}])) == INFINITE
    assert numbers_state((math.inf, math.nan)) == NAN
