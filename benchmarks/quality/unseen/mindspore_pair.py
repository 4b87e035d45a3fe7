"""A small network in PyTorch and in MindSpore: the port records the target run in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from architectures import MODELS, Batch, Model
from cases import clean
from faults.forward import add
from torch import Tensor, nn
from training import Experiment, Plant, Recipe

MINDSPORE = "mindspore_port"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(40, 16)
        self.norm1 = nn.LayerNorm(16)
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.norm2 = nn.LayerNorm(16)
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 16)
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens)
        y = self.norm1(x)
        scores = torch.matmul(self.query(y), self.key(y).transpose(-1, -2)) * 0.25
        x = x + torch.matmul(F.softmax(scores, dim=-1), self.value(y))
        x = x + self.fc2(F.relu(self.fc1(self.norm2(x))))
        return self.head(x)


def letters(step: int) -> Batch:
    generator = torch.Generator().manual_seed(6000 + step)
    return {"tokens": torch.randint(0, 40, (3, 8), generator=generator, dtype=torch.int32)}


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens = batch["tokens"]
    logits = model(tokens)
    return F.cross_entropy(logits.reshape(-1, 40), tokens.reshape(-1).long())


MODELS[MINDSPORE] = Model(MINDSPORE, lambda changes: Small(), letters, _loss)


def in_mindspore(fault: str = "") -> Plant:
    def plant(run: Experiment) -> None:
        def record(dump: Path) -> None:
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder) / "data.npz"
                weights = {name: value.detach().numpy() for name, value in run.model.named_parameters()}
                np.savez(data, tokens=run.batch(0)["tokens"].numpy(), **weights)
                script = Path(__file__).with_name("mindspore_small.py")
                command = [sys.executable, str(script), str(data), str(dump), run.recipe.level, fault]
                subprocess.run(command, check=True, capture_output=True)

        run.instead = record

    return plant


# fmt: off
MIX, CELLS = Recipe(steps=1, stop_first=True), Recipe(steps=1, stop_first=True, level="L0")
add(MINDSPORE, "eps of a norm", in_mindspore("eps"), "norm2", recipe=MIX)
add(MINDSPORE, "attention scale", in_mindspore("scale"), "", call="mul", recipe=MIX)
add(MINDSPORE, "gelu for relu", in_mindspore("gelu"), "", call="relu|gelu", recipe=MIX)
add(MINDSPORE, "eps of a norm, L0", in_mindspore("eps"), "norm2", recipe=CELLS)
clean(MINDSPORE, "port", in_mindspore(), recipe=MIX)
clean(MINDSPORE, "port, L0", in_mindspore(), recipe=CELLS)
