"""A fault is planted in one instance, with the lines of its file, or it is an error."""

from __future__ import annotations

import traceback

import pytest
import torch


def test_an_edit_changes_one_instance_and_keeps_the_line_numbers() -> None:
    from edits import edit
    from networks import ResNet

    torch.manual_seed(0)
    model = ResNet()
    x = torch.randn(2, 8, 4, 4)
    usual = [block(x) for block in model.blocks]
    edit(model.blocks[1], "x = x + shortcut", "x = x - shortcut")
    changed = [block(x) for block in model.blocks]
    assert [torch.equal(one, other) for one, other in zip(usual, changed)] == [True, False, True]
    edit(model.blocks[2], "x = x + shortcut", "raise KeyError")
    with pytest.raises(KeyError) as raised:
        model.blocks[2](x)
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert frame.line == "x = x + shortcut"


def test_a_text_that_is_not_there_is_an_error() -> None:
    from edits import CannotPlant, edit
    from networks import ResNet

    with pytest.raises(CannotPlant, match=r"not there.*ResidualBlock\.forward"):
        edit(ResNet().blocks[0], "not there", "")


def test_a_faulty_kernel_is_wrong_in_its_module_only_and_gone_afterwards() -> None:
    from contextlib import ExitStack

    from kernels import faulty_kernel
    from networks import UNet
    from training import Experiment, Recipe

    torch.manual_seed(0)
    model, x = UNet(), torch.randn(1, 8, 4, 4)
    right = model.down2(x)
    with ExitStack() as patches:
        run = Experiment(model, dict, lambda model, batch: x, Recipe(), patches)
        faulty_kernel("middle", "silu", 1.05)(run)
        torch.testing.assert_close(model.down2(x), right)
        inside = model.middle(right)
    assert torch.equal(model.down2(x), right)
    torch.testing.assert_close(inside, model.middle(right) * 1.05)
