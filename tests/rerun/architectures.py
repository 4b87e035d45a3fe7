"""Ten small architectures in one script. Each runs plainly, under autocast and under checkpointing; DDP around them."""

from __future__ import annotations

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)


class Tokens(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens, images):
        return self.inner(input_ids=tokens)[0].float().square().mean()


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(40, 16), kind(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, tokens, images):
        return self.head(self.inner(self.embed(tokens))[0][:, -1]).square().mean()


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 4),
        )

    def forward(self, tokens, images):
        return self.inner(images).square().mean()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, tokens, images):
        x = self.stem(images)
        y = self.two(F.relu_(self.norm(self.one(x))))
        y += x
        return y.mean((2, 3)).square().mean()


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)

    def forward(self, tokens, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        return self.block(x)[:, 0].square().mean()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.route = nn.Embedding(40, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, tokens, images):
        x = self.embed(tokens).flatten(0, 1)
        weights, chosen = F.softmax(self.route(x), -1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            out.index_add_(0, rows, (expert(x[rows]) * weights[rows, slots, None]).to(out.dtype))
        return (x + out).square().mean()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, tokens, images):
        first = F.leaky_relu(self.down(images), inplace=True)
        x = torch.cat((self.up(F.relu(self.deep(first))), first), 1)
        return (F.interpolate(self.out(x), scale_factor=2, mode="nearest") - images).square().mean()


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
        self.across, self.along = nn.Linear(8, 8), nn.Linear(16, 16)

    def forward(self, tokens, images):
        x = self.embed(tokens)
        x = x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        first, second = F.gelu(self.along(x)).chunk(2, -1)
        first = first.clone()
        first[:, 0].mul_(1.5)
        return (first * second).sum(-1).square().mean()


small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt2 = Tokens(GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2)))
        self.llama = Tokens(LlamaForCausalLM(LlamaConfig(**small, num_key_value_heads=1, max_position_embeddings=16)))
        self.bert = Tokens(BertModel(BertConfig(**small, max_position_embeddings=16)))
        self.gru, self.convolutions, self.residual = Recurrent(nn.GRU), Convolutions(), Residual()
        self.vit, self.experts, self.unet, self.mixer = VisionTransformer(), Experts(), UNet(), Mixer()

    def forward(self, tokens, images):
        total = 0.0
        for part in self.children():
            total = total + part(tokens, images)
            with torch.autocast("cpu", torch.bfloat16):
                total = total + part(tokens, images).float()
            total = total + checkpoint(part, tokens, images, use_reentrant=False)
        return total


dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Zoo(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
numbers = torch.Generator().manual_seed(dist.get_rank())
for step in range(2):
    tokens = torch.randint(0, 40, (2, 8), generator=numbers)
    loss = model(tokens, torch.randn(2, 3, 8, 8, generator=numbers))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
