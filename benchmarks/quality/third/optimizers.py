"""Optimizers as users write them: Lion and LAMB, without foreach."""

from __future__ import annotations

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """The sign of a moving average."""

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = torch.sign(state["average"] * first + p.grad * (1 - first))
                p.add_(update, alpha=-group["lr"])
                state["average"].lerp_(p.grad, 1 - second)


class Lamb(torch.optim.Optimizer):
    """Adam with a step as long as a share of the weight."""

    def __init__(self, params: Any, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
                 trust: bool = True) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"], state["count"] = torch.zeros_like(p), torch.zeros_like(p), 0
                state["count"] += 1
                state["m"].mul_(first).add_(p.grad, alpha=1 - first)
                state["v"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                m = state["m"] / (1 - first ** state["count"])
                v = state["v"] / (1 - second ** state["count"])
                update = m / (v.sqrt() + group["eps"])
                ratio = 1.0
                if group["trust"]:
                    long, short = p.norm(), update.norm()
                    ratio = torch.where((long > 0) & (short > 0), long / short, torch.ones_like(long))
                p.sub_(update * ratio * group["lr"])
