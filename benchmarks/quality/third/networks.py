"""Faults in the networks of own.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cases import Expect, fault
from plants import assigned, edited
from torch import Tensor, nn
from training import Experiment, Plant

from third import own
from third.backward import CUT
from third.forward import data, wrong


def with_loss(loss: Any) -> Plant:
    def plant(run: Experiment) -> None:
        run.loss = loss

    return plant


def smoothed(amount: float) -> Plant:
    return with_loss(
        lambda model, batch: F.cross_entropy(model(batch["x"], batch["edges"]), batch["labels"], label_smoothing=amount)
    )


def photo(beta: float) -> Plant:
    return with_loss(
        lambda model, batch: F.smooth_l1_loss(
            model(batch["origins"], batch["directions"], batch["depths"]), batch["colours"], beta=beta
        )
    )


def heat(**changes: float) -> Plant:
    return with_loss(lambda model, batch: own.residual(model, batch, **changes))


def detached_residual(model: nn.Module, batch: Any) -> Tensor:
    """The second derivative takes no part in the gradient."""
    x, t = batch["x"].clone().requires_grad_(), batch["t"].clone().requires_grad_()
    u = model(x, t)
    du_dx, du_dt = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
    (d2u,) = torch.autograd.grad(du_dx.sum(), x, create_graph=True)
    inside = (du_dt - 0.1 * d2u.detach()).pow(2).mean()
    start = (model(batch["x"], torch.zeros_like(batch["t"])) - torch.sin(torch.pi * batch["x"])).pow(2).mean()
    return inside + 1.0 * start


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
wrong("graph_attention", "slope of leaky_relu", edited("layers.0", ", 0.2)", ", 0.02)"), "layers.0", call="leaky_relu", says=(r"0\.02",))
wrong("graph_attention", "softmax not normalised", edited("layers.1", "mixed / (total[..., None] + 1e-9)", "mixed / (total[..., None] + 1.0)"), "layers.1", call="add", says=(r"1\.0",))
data("graph_attention", "edges reversed", lambda batch: {**batch, "edges": batch["edges"].flip(0)}, "", "layers.0")
fault("graph_attention", "label smoothing", "forward", smoothed(0.2), Expect(modules=("",), call="cross_entropy", says=(r"0\.2", "smoothing")))
wrong("flow", "sign of the volume", edited("", "volume = volume + more", "volume = volume - more"), "", says=("sub", "add"))
wrong("flow", "bound of the scale", edited("steps.1", "0.5 * torch.tanh(log_scale)", "0.6 * torch.tanh(log_scale)"), "steps.1", call="mul", says=(r"0\.6",))
wrong("flow", "the other half", assigned("steps.2", "flip", True), "steps.2", "steps.2.net.0", kind="wiring")
wrong("field", "softplus for density", edited("", "F.softplus(self.density(hidden))", "F.relu(self.density(hidden))"), "", says=("relu", "softplus"))
wrong("field", "light not seen yet", edited("", "dim=1)[:, :-1]", "dim=1)[:, 1:]"), "", kind="wiring")
wrong("field", "gap at the end", edited("", "depths[:, -1:] + 0.5", "depths[:, -1:] + 5.0"), "", call="add", says=(r"5\.0",))
data("field", "directions not of length one", lambda batch: {**batch, "directions": batch["directions"] * 1.2}, "")
fault("field", "beta of the loss", "forward", photo(0.5), Expect(modules=("",), call="smooth_l1", says=("beta", r"0\.5")))
fault("pinn", "diffusivity", "forward", heat(diffusivity=0.12), Expect(modules=("",), call="mul", says=(r"0\.12",)), golden_plant=heat())
fault("pinn", "weight of the boundary", "forward", heat(boundary=2.0), Expect(modules=("",), call="mul", says=(r"2\.0",)), golden_plant=heat())
fault("pinn", "second derivative without gradient", "backward", with_loss(detached_residual), Expect(modules=("",), says=(CUT,)), golden_plant=heat())
wrong("gan", "another slope in the critic", lambda run: setattr(run.module("critic.1"), "negative_slope", 0.1), "critic.1", call="leaky_relu", says=(r"0\.1",))
# fmt: on
