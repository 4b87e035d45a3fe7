"""Reinforcement learning: an actor and a critic, generalised advantage estimation, clipped PPO, two optimizers."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(41)
GAMMA, LAMBDA, CLIP = 0.98, 0.9, 0.2


class Actor(nn.Module):
    def __init__(self, observations=10, actions=5, width=32):
        super().__init__()
        self.fc1 = nn.Linear(observations, width)
        self.fc2 = nn.Linear(width, width)
        self.logits = nn.Linear(width, actions)
        for layer in (self.fc1, self.fc2):
            nn.init.orthogonal_(layer.weight, gain=2**0.5)
            nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.logits.weight, gain=0.01)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.logits(x)


class Critic(nn.Module):
    def __init__(self, observations=10, width=32):
        super().__init__()
        self.fc1 = nn.Linear(observations, width)
        self.norm = nn.LayerNorm(width)
        self.value = nn.Linear(width, 1)

    def forward(self, x):
        return self.value(F.gelu(self.norm(self.fc1(x)))).squeeze(-1)


def rollout(step):
    chooser = torch.Generator().manual_seed(step)
    observations = torch.randn(16, 8, 10, generator=chooser) * 2 + 0.3
    actions = torch.randint(0, 5, (16, 8), generator=chooser)
    rewards = torch.randn(16, 8, generator=chooser)
    dones = (torch.rand(16, 8, generator=chooser) < 0.1).to(rewards.dtype)
    return observations, actions, rewards, dones


def advantages_of(rewards, values, dones, last):
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(last)
    following = last
    for t in reversed(range(rewards.shape[0])):
        alive = 1 - dones[t]
        delta = rewards[t] + GAMMA * following * alive - values[t]
        running = delta + GAMMA * LAMBDA * alive * running
        advantages[t] = running
        following = values[t]
    return advantages


class Normaliser:
    def __init__(self, width):
        self.mean, self.square, self.count = torch.zeros(width), torch.ones(width), 1e-4

    def __call__(self, x):
        flat = x.flatten(0, -2)
        total = self.count + len(flat)
        apart = flat.mean(0) - self.mean
        spread = self.square * self.count + flat.var(0, unbiased=False) * len(flat)
        spread = spread + apart.square() * self.count * len(flat) / total
        self.mean = self.mean + apart * len(flat) / total
        self.square, self.count = spread / total, total
        return torch.clamp((x - self.mean) / torch.sqrt(self.square + 1e-8), -5, 5)


actor, critic = Actor(), Critic()
models = [actor, critic]
normalise = Normaliser(10)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3, eps=1e-5)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2, eps=1e-5)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    observations, actions, rewards, dones = rollout(step)
    debugger.start(model=models)
    seen = normalise(observations)
    with torch.no_grad():
        values = critic(seen)
        before = F.log_softmax(actor(seen) + 0.3 * seen[..., :5], dim=-1).gather(-1, actions[..., None]).squeeze(-1)
        advantages = advantages_of(rewards, values, dones, values[-1])
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_probs = F.log_softmax(actor(seen), dim=-1)
    chosen = log_probs.gather(-1, actions[..., None]).squeeze(-1)
    ratio = torch.exp(chosen - before)
    gain = torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    policy_loss = -gain.mean() - 0.02 * entropy
    guess = critic(seen)
    clipped = values + torch.clamp(guess - values, -CLIP, CLIP)
    value_loss = 0.5 * torch.max((guess - returns).square(), (clipped - returns).square()).mean()
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    policy_loss.backward()
    value_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.05)
    actor_optimizer.step()
    critic_optimizer.step()
    losses.append(policy_loss.item() + value_loss.item())
    debugger.stop()
    debugger.step()
