"""Ten clean models, small enough to compile in a minute, and their inputs: `check_compiled` must find nothing."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


class Returns(nn.Module):
    """A model of transformers that returns one tensor."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, tokens: Tensor) -> Tensor:
        return getattr(self.model(tokens, use_cache=False) if self.field != "plain" else self.model(tokens), self.field)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return Returns(LlamaForCausalLM(LlamaConfig(**TINY, intermediate_size=32, num_key_value_heads=1)), "logits")


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Returns(GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)), "logits")


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(**TINY, intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Returns(BertModel(config), "last_hidden_state")


def qwen() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Returns(Qwen2ForCausalLM(Qwen2Config(**TINY, intermediate_size=32, num_key_value_heads=1)), "logits")


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 16, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(images)), inplace=True), 2)
        return self.head(F.relu(self.second(x)).flatten(1))


class Recurrent(nn.Module):
    """An LSTM cell in a loop: torch.compile does not enter nn.LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, images: Tensor) -> Tensor:
        return torch.sigmoid(self.up(F.silu(self.norm(self.down(images)))))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.dropout(F.gelu(self.up(x)), 0.1, self.training)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def words() -> Tensor:
    return torch.randint(32, (2, 6), generator=torch.Generator().manual_seed(5))


def values(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(6))


CLEAN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "llama": (llama, words),
    "gpt2": (gpt2, words),
    "bert": (bert, words),
    "qwen2": (qwen, words),
    "convnet": (ConvNet, values(2, 3, 8, 8)),
    "lstm": (Lstm, values(2, 5, 8)),
    "lstm cell": (Recurrent, values(2, 3, 8)),
    "autoencoder": (Autoencoder, values(2, 3, 8, 8)),
    "dropout": (Dropped, values(4, 8)),
    "encoder": (Encoder, values(2, 5, 16)),
}


def make(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """A model and an input for it."""
    torch.manual_seed(7)
    model, batch = CLEAN[name]
    x = batch()
    return model().to(dtype), x.to(dtype) if x.is_floating_point() else x
