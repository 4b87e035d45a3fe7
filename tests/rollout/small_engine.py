"""A small inference engine of the tests' own: continuous batching, chunked prefill, a KV cache per request.

Its names and classes are not those of vLLM or Hugging Face: `stack.3.mix.wqkv` is q, k and v in one, `scale_in` adds
the residual and normalises. Its runner has the attributes that msprobe reads from vLLM's.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

PROMPTS = [[5, 9, 2, 33, 8, 51, 7, 20, 11, 3], [17, 4, 60, 41], [5, 9, 2, 33, 30, 31, 32]]


class AddScale(torch.nn.Module):
    """The sum with the residual and its norm in one call, as engines fuse it."""

    def __init__(self, weight, epsilon):
        super().__init__()
        self.gain = torch.nn.Parameter(weight.clone(), requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x, residual=None):
        total = x if residual is None else x + residual
        wide = total.float()
        made = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        made = self.gain * made.to(total.dtype)
        return made if residual is None else (made, total)


class Projection(torch.nn.Module):
    """Several projections in one matrix. Returns (result, None)."""

    def __init__(self, *weights):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.cat(weights), requires_grad=False)

    def forward(self, x):
        return x @ self.matrix.T, None


class Turn(torch.nn.Module):
    def __init__(self, size, theta):
        super().__init__()
        self.rates = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)

    def forward(self, positions, x):
        angle = positions[:, None].float() * self.rates
        cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Look(torch.nn.Module):
    """Attention over the cache of each request."""

    def __init__(self, runner, number, scale):
        super().__init__()
        self.runner, self.number, self.scale = [runner], number, scale
        self.cap, self.window, self.kept = None, None, None

    def forward(self, query, key, value):
        made = torch.empty_like(query)
        for name, start, end, computed in self.runner[0].spans:
            cache = self.runner[0].caches.setdefault((name, self.number), [key[:0], value[:0]])
            for place, new in ((0, key), (1, value)):
                one = new[start:end] if self.kept is None else new[start:end].to(self.kept).to(new.dtype)
                cache[place] = torch.cat([cache[place][:computed], one])
            made[start:end] = self._attend(query[start:end], *cache, computed)
        return made.flatten(1)

    def _attend(self, query, keys, values, computed):
        groups = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self.scale
        if self.cap:
            scores = torch.tanh(scores / self.cap) * self.cap
        row = computed + torch.arange(len(query))[:, None]
        column = torch.arange(len(keys))[None]
        hidden = column > row if self.window is None else (column > row) | (column <= row - self.window)
        scores = scores.masked_fill(hidden, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.float().softmax(-1).to(values.dtype), values)


class Gate(torch.nn.Module):
    def forward(self, x):
        first, second = x.chunk(2, -1)
        return torch.nn.functional.silu(first) * second


class Mix(torch.nn.Module):
    def __init__(self, runner, number, weights, config):
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.wqkv = Projection(*(weights[f"self_attn.{one}_proj.weight"] for one in "qkv"))
        self.turn = Turn(self.size, config.rope_parameters["rope_theta"])
        self.look = Look(runner, number, self.size**-0.5)
        self.wo = Projection(weights["self_attn.o_proj.weight"])

    def forward(self, positions, x):
        fused = self.wqkv(x)[0].unflatten(-1, (-1, self.size))
        query, key, value = fused.split([self.heads, self.groups, self.groups], 1)
        return self.wo(self.look(self.turn(positions, query), self.turn(positions, key), value))[0]


class Piece(torch.nn.Module):
    def __init__(self, runner, number, weights, config):
        super().__init__()
        self.scale_in = AddScale(weights["input_layernorm.weight"], config.rms_norm_eps)
        self.mix = Mix(runner, number, weights, config)
        self.scale_mid = AddScale(weights["post_attention_layernorm.weight"], config.rms_norm_eps)
        self.wide = Projection(weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"])
        self.gate = Gate()
        self.narrow = Projection(weights["mlp.down_proj.weight"])

    def forward(self, positions, x, residual):
        if residual is None:
            x, residual = self.scale_in(x), x
        else:
            x, residual = self.scale_in(x, residual)
        x, residual = self.scale_mid(self.mix(positions, x), residual)
        return self.narrow(self.gate(self.wide(x)[0]))[0], residual


class Scribe(torch.nn.Module):
    """A Llama model, from the weights of a Hugging Face one."""

    def __init__(self, runner, config, weights):
        super().__init__()
        self.words = torch.nn.Embedding.from_pretrained(weights["model.embed_tokens.weight"].clone())

        def layer(number):
            head = f"model.layers.{number}."
            return {name[len(head) :]: value for name, value in weights.items() if name.startswith(head)}

        self.stack = torch.nn.ModuleList(
            Piece(runner, number, layer(number), config) for number in range(config.num_hidden_layers)
        )
        self.last = AddScale(weights["model.norm.weight"], config.rms_norm_eps)
        self.speak = Projection(weights["lm_head.weight"])

    def forward(self, input_ids, positions):
        x, residual = self.words(input_ids), None
        for piece in self.stack:
            x, residual = piece(positions, x, residual)
        return self.last(x, residual)[0]


class Runner:
    """Runs requests step by step. `budget` is the most tokens of one step: longer prompts are split."""

    def __init__(self, config, weights, budget=24, seed=0, temperature=1.0):
        self.spans, self.caches = [], {}
        self.model = Scribe(self, config, weights)
        self.budget, self.temperature = budget, temperature
        self.requests = {}
        self.input_batch = SimpleNamespace(req_ids=[], num_reqs=0, num_computed_tokens_cpu=np.zeros(64, dtype=int))
        self.query_start_loc = SimpleNamespace(np=np.zeros(65, dtype=int))
        self.generator = torch.Generator().manual_seed(seed)
        self.computed, self.state = {}, None
        self.shift_decode = 0

    def get_model(self):
        return self.model

    def add(self, name, prompt):
        settings = SimpleNamespace(temperature=self.temperature, top_p=1.0)
        self.requests[name] = SimpleNamespace(
            prompt_token_ids=list(prompt), output_token_ids=[], sampling_params=settings
        )
        self.computed[name] = 0

    def plan(self):
        room, chosen = self.budget, {}
        for name, one in self.requests.items():
            waiting = len(one.prompt_token_ids) + len(one.output_token_ids) - self.computed[name]
            if waiting and room:
                chosen[name] = min(waiting, room)
                room -= chosen[name]
        return SimpleNamespace(num_scheduled_tokens=chosen, total_num_scheduled_tokens=sum(chosen.values()))

    def execute_model(self, plan):
        names = list(plan.num_scheduled_tokens)
        self.input_batch.req_ids, self.input_batch.num_reqs = names, len(names)
        self.spans, ids, positions, start = [], [], [], 0
        for index, name in enumerate(names):
            computed, count = self.computed[name], plan.num_scheduled_tokens[name]
            self.input_batch.num_computed_tokens_cpu[index] = computed
            one = self.requests[name]
            ids += (one.prompt_token_ids + one.output_token_ids)[computed : computed + count]
            shift = self.shift_decode if count == 1 and computed else 0
            positions += [place + shift for place in range(computed, computed + count)]
            self.spans.append((name, start, start + count, computed))
            start += count
            self.query_start_loc.np[index + 1] = start
        hidden = self.model(input_ids=torch.tensor(ids), positions=torch.tensor(positions))
        last = [end - 1 for _, _, end, _ in self.spans]
        self.state = (names, self.model.speak(hidden[last])[0])

    def sample_tokens(self, _=None):
        names, logits = self.state
        logprobs = logits.float().log_softmax(-1)
        drawn = torch.multinomial((logits.float() / self.temperature).softmax(-1), 1, generator=self.generator)
        tokens, values = [], []
        for index, (name, start, end, computed) in enumerate(self.spans):
            one = self.requests[name]
            self.computed[name] = computed + end - start
            done = self.computed[name] == len(one.prompt_token_ids) + len(one.output_token_ids)
            tokens.append([int(drawn[index])] if done else [])
            values.append(self.read_logprob(logprobs[index], tokens[-1]))
            one.output_token_ids += tokens[-1]
        return SimpleNamespace(
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=Logprobs(values),
            prompt_logprobs_dict={},
        )

    def read_logprob(self, logprobs, tokens):
        return [float(logprobs[token]) for token in tokens]

    def run(self, prompts, new=4):
        """All prompts, each with this many new tokens. Returns the sequences."""
        for number, prompt in enumerate(prompts):
            self.add(f"{number}-x", prompt)
        while True:
            unfinished = {n: o for n, o in self.requests.items() if len(o.output_token_ids) < new}
            if not unfinished:
                break
            self.requests, everything = unfinished, self.requests
            self.execute_model(self.plan())
            self.sample_tokens()
            self.requests = everything
        return [one.prompt_token_ids + one.output_token_ids for one in self.requests.values()]


class Logprobs:
    def __init__(self, values):
        self.values = values

    def slice_request(self, index, count):
        return SimpleNamespace(logprobs=[[value] for value in self.values[index]])
