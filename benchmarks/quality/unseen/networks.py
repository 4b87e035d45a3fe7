"""Faults in the networks that are not from transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from architectures import Batch
from cases import Expect, fault
from faults.backward import cut
from faults.forward import add
from plants import assigned, edited
from torch import Tensor, nn
from training import Experiment, Recipe

import unseen.models  # noqa: F401


def wrong_blank(run: Experiment) -> None:
    """The CTC loss with another blank."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores, text = model(batch["features"]).transpose(0, 1), batch["text"]
        lengths = torch.full((scores.shape[1],), scores.shape[0])
        ends = torch.full((text.shape[0],), text.shape[1])
        return F.ctc_loss(scores, text, lengths, ends, blank=0, reduction="sum", zero_infinity=True)

    run.loss = loss


def policy_loss(run: Experiment, sign: float, detach: bool) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, value = model(batch["state"])
        advantage = batch["reward"] - (value.detach() if detach else value)
        chosen = F.log_softmax(logits, dim=-1).gather(1, batch["action"][:, None]).squeeze(1)
        policy = -(chosen * advantage).mean()
        entropy = -(F.softmax(logits, dim=-1) * F.log_softmax(logits, dim=-1)).sum(-1).mean()
        return policy + 0.5 * F.mse_loss(value, batch["reward"]) - sign * 0.01 * entropy

    run.loss = loss


def reseeded(run: Experiment) -> None:
    """Other random numbers while the model runs, in every step."""
    usual = run.loss

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        torch.manual_seed(99)
        return usual(model, batch)

    run.loss = loss


# One fault a line or two reads as a table; some are longer than a line of code may be.
# ruff: noqa: E501
# fmt: off
add("diffusion", "noise without its root", edited("", "(1 - kept).sqrt() * noise", "(1 - kept) * noise"), "", call="sqrt|mul")
add("diffusion", "sine and cosine exchanged", edited("", "torch.cat([angles.sin(), angles.cos()]", "torch.cat([angles.cos(), angles.sin()]",
    method="embed"), "", call="cat", never=("is missing",))
add("diffusion", "time added once", edited("", "x = x + block(x + time)", "x = x + block(x)"), "", "blocks.0*")
add("diffusion", "noise of another seed", reseeded, "", says=("random",))
add("speech", "slope", edited("", "0.1)", "0.01)"), "", call="leaky_relu", says=(r"0\.01\b", r"0\.1\b"))
add("speech", "loss summed", wrong_blank, "", call="ctc_loss", says=("sum",))
add("speech", "momentum of the norm", assigned("norm", "momentum", 0.01), "norm", call="batch_norm", says=(r"0\.01\b", r"0\.1\b"))
add("actor_critic", "entropy with the wrong sign", lambda run: policy_loss(run, -1.0, True), "", call="mul|sub|add",
    golden_plant=lambda run: policy_loss(run, 1.0, True))
cut("actor_critic", "advantage not detached", lambda run: policy_loss(run, 1.0, False), "",
    golden_plant=lambda run: policy_loss(run, 1.0, True))
fault("actor_critic", "tanh missing", "wiring", edited("trunk", "for module in self:", "for module in list(self)[:3]:"),
      Expect(modules=("trunk", "trunk.3", ""), direction="forward"), recipe=Recipe(stop_first=True))
