"""Holds gradients of PyTorch until all gradients of a call have come."""

from __future__ import annotations

import torch

from msprobe.collect.gradients import held_gradients
from msprobe.pytorch.gradients.call_gradients import Gradients


class HeldGradients(held_gradients.HeldGradients, Gradients):
    kinds = (torch.Tensor,)
