"""Small models and training functions. An option plants a fault or a harmless rewrite; no option is the golden run."""

import copy
import math
import zlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Options(dict):
    __getattr__ = dict.get


def reset(model, scale=0.25):
    """The same numbers for the same parameter name, whatever the order of construction."""
    for name, p in model.named_parameters():
        g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=g) * scale + (1.0 if "norm" in name and "weight" in name else 0))
    torch.manual_seed(1)
    return model


# ---------------------------------------------------------------- optimizers
class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, bug=None):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.bug = bug

    @torch.no_grad()
    def step(self, closure=None):
        bug = self.bug
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                grad = p.grad
                if bug == "l2":
                    grad = grad + group["weight_decay"] * p
                else:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                s["m"].mul_(b1).add_(grad, alpha=1 - b1)
                s["v"].mul_(b2).addcmul_(grad, grad, value=1 - b2)
                c1, c2 = 1 - b1 ** s["t"], 1 - b2 ** s["t"]
                if bug == "no_bias_correction":
                    c1 = c2 = 1.0
                if bug == "v_bias_missing":
                    c2 = 1.0
                denominator = (s["v"] / c2).sqrt() + group["eps"]
                if bug == "eps_in_sqrt":
                    denominator = (s["v"] / c2 + 1e-4).sqrt()
                p.addcdiv_(s["m"], denominator, value=-group["lr"] / c1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, bug=None, rewrite=None):
        super().__init__(params, {"lr": lr})
        self.bug, self.rewrite = bug, rewrite

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                if self.rewrite:
                    update = torch.lerp(p.grad, m, 0.9).sign()
                    p.sub_(group["lr"] * update)
                    m.lerp_(p.grad, 0.01)
                    continue
                if self.bug == "momentum_first":
                    m.mul_(0.99).add_(p.grad, alpha=0.01)
                    update = (m * 0.9 + p.grad * 0.1).sign()
                else:
                    update = (m * 0.9 + p.grad * 0.1).sign()
                    m.mul_(0.99).add_(p.grad, alpha=0.01)
                p.add_(update, alpha=-group["lr"])


class HandSGD:
    """Momentum SGD by hand, without torch.optim."""

    def __init__(self, params, lr=0.05, momentum=0.9, bug=None):
        self.params, self.lr, self.momentum, self.bug, self.v = list(params), lr, momentum, bug, {}

    @torch.no_grad()
    def step(self):
        for i, p in enumerate(self.params):
            if p.grad is None:
                continue
            if i not in self.v:
                self.v[i] = p.grad.clone()
            else:
                grad = p.grad * (1 - self.momentum) if self.bug == "dampening" else p.grad
                self.v[i] = self.momentum * self.v[i] + grad
            p -= self.lr * self.v[i]

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


def optimizer_of(o, model):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad and not (o.only and o.only not in n)]
    params = [p for _, p in named]
    lr, wd = o.lr or 1e-2, 0.1 if o.wd is None else o.wd
    betas = o.betas or (0.9, 0.999)
    if o.groups:  # no decay for vectors
        decay = [p for n, p in named if p.dim() > 1]
        plain = [p for n, p in named if p.dim() <= 1]
        if o.groups == "swapped":
            decay, plain = plain, decay
        params = [{"params": decay, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}]
    if o.forget:  # a part of the model never reaches the optimizer
        params = [p for n, p in named if o.forget not in n]
    kind = o.opt or "adamw"
    if kind in ("adamw", "foreach", "fused", "single"):
        flags = {"foreach": {"foreach": True}, "fused": {"fused": True}, "single": {"foreach": False}}.get(kind, {})
        return torch.optim.AdamW(params, lr=lr, weight_decay=wd, betas=betas, eps=o.opt_eps or 1e-8, **flags)
    if kind == "adam":
        return torch.optim.Adam(params, lr=lr, weight_decay=wd)
    if kind == "own":
        return OwnAdamW(params, lr=lr, weight_decay=wd, betas=betas, bug=o.opt_bug)
    if kind == "lion":
        return Lion(params, lr=lr, bug=o.opt_bug, rewrite=o.opt_rewrite)
    if kind == "hand":
        return HandSGD(params, bug=o.opt_bug)
    return torch.optim.SGD(params, lr=o.lr or 0.05, momentum=0.9, nesterov=bool(o.nesterov), foreach=bool(o.foreach))


# ---------------------------------------------------------------- the loop
def train(o, dbg, model, data, loss_of, after=None, steps=2):
    """loss_of(model, batch) is the loss of one batch; a batch is a tuple of tensors."""
    optimizer = optimizer_of(o, model)
    params = [p for p in model.parameters() if p.requires_grad]
    schedule = None
    factor = {"warmup": lambda s: (s + 1) / 4, "warmup_from_0": lambda s: (s + 0.0) / 4 + 0.001}
    if o.sched in factor:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor[o.sched])
    if o.sched == "cosine":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.t_max or 4)
    base = o.lr or 1e-2
    losses = []
    order = [1, 0, 2] if o.order == "swapped" else [0, 1, 2]
    for step in range(steps):
        batch = data[order[step]]
        dbg.start(model)
        if o.sched == "hand":
            for group in optimizer.param_groups:
                group["lr"] = base * (step + 1) / 4
        if o.sched == "hand_cosine":
            for group in optimizer.param_groups:
                group["lr"] = base * (1 + math.cos(math.pi * step / 4)) / 2
        if o.sched_first and schedule:
            schedule.step()
        if o.perm:
            index = torch.tensor([2, 0, 3, 1])
            batch = tuple(t[index] for t in batch)
        if o.accum:
            n = o.accum
            parts = list(zip(*(t.chunk(n) for t in batch)))
            total = 0.0
            for i, part in enumerate(parts):
                loss = loss_of(model, part)
                if o.accum_scale != "none":
                    loss = loss / n
                loss.backward()
                total += loss.item()
                if o.accum_zero and i < n - 1:
                    optimizer.zero_grad()
                if o.clip_each and o.clip:
                    torch.nn.utils.clip_grad_norm_(params, o.clip)
            losses.append(total)
        else:
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
        if o.grad_hook == "nan_to_num":
            for p in params:
                if p.grad is not None:
                    torch.nan_to_num_(p.grad)
        if o.clip and not o.clip_each:
            if o.clip_how == "hand":
                norm = torch.sqrt(sum((p.grad**2).sum() for p in params if p.grad is not None))
                factor_ = min(1.0, o.clip / (norm.item() + 1e-6))
                for p in params:
                    if p.grad is not None:
                        p.grad.mul_(factor_)
            elif o.clip_how == "value":
                torch.nn.utils.clip_grad_value_(params, o.clip)
            elif o.clip_how == "per_parameter":
                for p in params:
                    torch.nn.utils.clip_grad_norm_([p], o.clip)
            elif o.clip_how == "inf":
                torch.nn.utils.clip_grad_norm_(params, o.clip, norm_type=float("inf"))
            elif o.clip_how == "late":
                pass
            else:
                torch.nn.utils.clip_grad_norm_(params, o.clip)
        optimizer.step()
        if o.clip_how == "late":
            torch.nn.utils.clip_grad_norm_(params, o.clip)
        if schedule and not o.sched_first:
            schedule.step()
            if o.sched_twice:
                schedule.step()
        if after:
            after(model)
        if o.zero == "never":
            pass
        elif o.zero == "fill":
            optimizer.zero_grad(set_to_none=False)
        elif o.zero == "model":
            model.zero_grad()
        else:
            optimizer.zero_grad()
        dbg.stop()
        dbg.step()
    return losses, model


# ---------------------------------------------------------------- 1: decoder language model
V, D, H, KV, HD, T, B = 40, 32, 4, 2, 8, 12, 4


def rope_tables(o, length):
    base = o.rope_base or 10000.0
    inv = 1.0 / base ** (torch.arange(0, HD, 2).float() / HD)
    return torch.outer(torch.arange(length).float(), inv)


def rotate(o, x, angle, which):
    """x is B, heads, T, HD. The golden run pairs i with i + HD / 2."""
    if o.rope_shift and which == "k":
        angle = angle.roll(-1, 0)
    if o.rope == "interleaved":
        if o.rope_complex:
            z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
        cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        return x * cos + turned * sin
    if o.rope == "pieces":
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    cos, sin = (cast(o, c, x) for c in (torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()))
    a, b = x.chunk(2, -1)
    turned = torch.cat((b, -a), -1) if o.rope_sign else torch.cat((-b, a), -1)
    return x * cos + turned * sin


class RMSNorm(nn.Module):
    def __init__(self, o, dim):
        super().__init__()
        self.o, self.weight = o, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        o = self.o
        eps = o.norm_eps or 1e-5
        if o.norm == "functional":
            return F.rms_norm(x, (x.shape[-1],), self.weight, eps)
        if o.norm == "mean_subtracted":
            x = x - x.mean(-1, keepdim=True)
        if o.norm == "detached":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps).detach() * self.weight
        if o.norm == "eps_outside":
            return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 0.01) * self.weight
        if o.norm == "norm_call":
            return x / torch.sqrt(x.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + eps) * self.weight
        if o.norm == "weight_first":
            return (self.weight * x) * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.weight


class Attention(nn.Module):
    def __init__(self, o, layer):
        super().__init__()
        self.o, self.layer = o, layer
        if o.qkv == "fused":
            self.qkv = nn.Linear(D, D + 2 * KV * HD, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(D, n, bias=False) for n in (D, KV * HD, KV * HD))
        self.o_proj = nn.Linear(D, D, bias=False)
        self.q_norm, self.k_norm = RMSNorm(Options(), HD), RMSNorm(Options(), HD)

    def forward(self, x, angle):
        o = self.o
        b, t, _ = x.shape
        if o.qkv == "fused":
            q, k, v = self.qkv(x).split((D, KV * HD, KV * HD), -1)
            if o.kv_swapped:
                k, v = v, k
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (z.view(b, t, -1, HD).transpose(1, 2) for z in (q, k, v))
        if o.qk_norm == "after":
            q, k = self.q_norm(rotate(o, q, angle, "q")), self.k_norm(rotate(o, k, angle, "k"))
        elif o.qk_norm == "shared":
            q, k = rotate(o, self.q_norm(q), angle, "q"), rotate(o, self.q_norm(k), angle, "k")
        else:
            q, k = rotate(o, self.q_norm(q), angle, "q"), rotate(o, self.k_norm(k), angle, "k")
        if o.detach_k:
            k = k.detach()
        scale = {"dim": D**-0.5, "none": 1.0}.get(o.scale, HD**-0.5)
        if o.attn == "gqa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(y.transpose(1, 2).reshape(b, t, D))
        if o.attn == "grouped":
            q = q.view(b, KV, H // KV, t, HD)
            s = torch.einsum("bghqd,bgkd->bghqk", q, k) * scale
            s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
            y = torch.einsum("bghqk,bgkd->bghqd", s.softmax(-1), v).reshape(b, H, t, HD)
            return self.o_proj(y.transpose(1, 2).reshape(b, t, D))
        if o.repeat == "tile":
            k, v = k.repeat(1, H // KV, 1, 1), v.repeat(1, H // KV, 1, 1)
        elif o.repeat == "expand":
            k, v = (z[:, :, None].expand(b, KV, H // KV, t, HD).reshape(b, H, t, HD) for z in (k, v))
        else:
            k, v = k.repeat_interleave(H // KV, 1), v.repeat_interleave(H // KV, 1)
        if o.attn == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=o.causal is None, scale=o.sdpa_scale)
        elif o.attn == "sdpa_mask":
            allowed = torch.ones(t, t, dtype=torch.bool).tril(o.diagonal or 0)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        elif o.attn == "online":  # two blocks of keys, running maximum and sum
            m = torch.full((b, H, t, 1), -1e30)
            z, y = torch.zeros(b, H, t, 1), torch.zeros(b, H, t, HD)
            for at in range(0, t, t // 2):
                s = (q @ k[:, :, at : at + t // 2].transpose(-1, -2)) * scale
                late = torch.arange(at, at + t // 2)[None] > torch.arange(t)[:, None]
                s = s.masked_fill(late, -1e30)
                new = torch.maximum(m, s.amax(-1, keepdim=True))
                p = torch.exp(s - new).masked_fill(late, 0.0)
                fade = 1.0 if o.no_rescale else torch.exp(m - new)
                z, y, m = z * fade + p.sum(-1, keepdim=True), y * fade + p @ v[:, :, at : at + t // 2], new
            y = y / z
        else:
            if o.attn == "qscale":
                s = (q * scale) @ k.transpose(-1, -2)
                if o.twice_scaled:
                    s = s * scale
            else:
                s = q @ k.transpose(-1, -2) * scale
            if o.mask == "add":
                s = s + torch.full((t, t), -1e9).triu(1)
            elif o.mask == "weak":
                s = s + torch.full((t, t), -4.0).triu(1)
            elif o.mask == "after":
                p = s.softmax(-1).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), 0.0)
            else:
                s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1 + (o.diagonal or 0)), float("-inf"))
            if o.mask != "after":
                p = s.softmax(2 if o.softmax_dim else -1, dtype=torch.float32).to(q.dtype)
            y = p @ v
        if o.merge == "no_transpose":
            return self.o_proj(y.reshape(b, t, D))
        return self.o_proj(y.transpose(1, 2).reshape(b, t, D))


class MLP(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        if o.mlp == "fused":
            self.gate_up = nn.Linear(D, 4 * D, bias=False)
        else:
            self.gate, self.up = nn.Linear(D, 2 * D, bias=False), nn.Linear(D, 2 * D, bias=False)
        self.down = nn.Linear(2 * D, D, bias=False)

    def forward(self, x):
        o = self.o
        if o.mlp == "fused":
            gate, up = self.gate_up(x).chunk(2, -1)
            if o.chunk_swapped:
                up, gate = gate, up
        else:
            gate, up = self.gate(x), self.up(x)
        if o.act == "sigmoid":
            return self.down(gate * torch.sigmoid(gate) * up)
        if o.act == "gelu":
            return self.down(F.gelu(gate) * up)
        if o.act == "on_up":
            return self.down(F.silu(up) * gate)
        if o.act == "inplace":
            return self.down(F.silu(gate, inplace=True).mul_(up) if o.act_inplace else F.silu(gate).mul_(up))
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, o, layer):
        super().__init__()
        own = Options(
            {k: v for k, v in o.items() if o.layer is None or layer == o.layer or k in ("qkv", "mlp", "bf16")}
        )
        self.o = own
        self.norm1, self.attn, self.norm2, self.mlp = RMSNorm(own, D), Attention(own, layer), RMSNorm(own, D), MLP(own)
        self.drop = nn.Dropout(o.p or 0.0)

    def forward(self, x, angle):
        o = self.o
        if o.residual == "inplace":
            y = self.drop(self.attn(self.norm1(x), angle))
            y += x
            z = self.mlp(self.norm2(y))
            z += y
            return z
        if o.residual == "normed":
            h = self.norm1(x)
            x = h + self.drop(self.attn(h, angle))
        elif o.residual == "missing":
            x = self.drop(self.attn(self.norm1(x), angle))
        elif o.residual == "parallel":
            return x + self.drop(self.attn(self.norm1(x), angle)) + self.mlp(self.norm2(x))
        else:
            x = x + self.drop(self.attn(self.norm1(x), angle))
        if o.detach_mlp:
            return x + self.mlp(self.norm2(x.detach()))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(V, D, padding_idx=o.padding_idx)
        self.blocks = nn.ModuleList(Block(o, i) for i in range(2))
        self.norm = RMSNorm(Options(), D)
        if o.tie != "functional":
            self.head = nn.Linear(D, V, bias=False)
        if o.tie == "module":
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        o = self.o
        if o.embed == "onehot":
            x = F.one_hot(tokens, V).float() @ self.embed.weight
        elif o.embed == "index":
            x = self.embed.weight[tokens]
        elif o.embed == "functional":
            x = F.embedding(tokens, self.embed.weight)
        else:
            x = self.embed(tokens)
        if o.embed_scale:
            x = x * D**0.5
        if o.noise:  # someone draws a random number
            torch.rand(1)
        angle = rope_tables(o, tokens.shape[1])
        for i, block in enumerate(self.blocks):
            if o.ckpt:
                x = checkpoint(block, x, angle, use_reentrant=o.ckpt == "reentrant", preserve_rng_state=not o.ckpt_rng)
            else:
                x = block(x, angle)
            if o.between == "half" and i == 0:
                x = x.half().float()
            if o.between == "nograd" and i == 0:
                with torch.no_grad():
                    x = x * 1.0
        x = self.norm(x)
        y = F.linear(x, self.embed.weight) if o.tie == "functional" else self.head(x)
        if o.cap:
            y = 5 * torch.tanh(y / 5)
        if o.cap_rewrite:
            y = torch.tanh(y * 0.2).mul(5)
        return y


def lm_loss(o):
    def loss(model, batch):
        (tokens,) = batch
        logits = model(tokens)
        target = tokens[:, 1:].clone()
        if o.pad:  # the ends of two rows are padding, token 0
            ignored = tokens[:, 1:] == 0
            target[ignored] = -100
        logits = logits[:, :-1]
        if o.shift == "none":
            target = tokens[:, :-1].clone()
        if o.temperature:
            logits = logits / o.temperature
        flat, goal = logits.reshape(-1, V), target.reshape(-1)
        how = o.loss
        if how == "nll":
            return F.nll_loss(flat.log_softmax(-1), goal)
        if how == "hand":
            keep = goal != -100
            picked = flat.gather(1, goal.clamp(min=0)[:, None])[:, 0]
            each = torch.logsumexp(flat, -1) - picked
            if o.divide == "all":
                return (each * keep).sum() / keep.numel()
            return (each * keep).sum() / keep.sum()
        if how == "sum":
            return F.cross_entropy(flat, goal, reduction="sum") / (goal != -100).sum()
        if how == "sum_all":
            return F.cross_entropy(flat, goal, reduction="sum") / goal.numel()
        if how == "chunked":
            total = sum(F.cross_entropy(a, b, reduction="sum") for a, b in zip(flat.chunk(4), goal.chunk(4)))
            return total / (goal != -100).sum()
        if how == "chunk_means":
            return torch.stack([F.cross_entropy(a, b) for a, b in zip(flat.chunk(4), goal.chunk(4))]).mean()
        if how == "zloss":
            z = torch.logsumexp(flat, -1)
            return F.cross_entropy(flat, goal) + 0.05 * (z.detach() if o.z_detach else z).square().mean()
        if how == "smooth_hand":
            lp = flat.log_softmax(-1)
            eps = 0.1
            nll = -lp.gather(1, goal[:, None])[:, 0]
            if o.smooth_bug:  # spreads over the other classes only
                return ((1 - eps) * nll + eps * -(lp.sum(-1) + nll) / (V - 1)).mean()
            return ((1 - eps) * nll + eps * -lp.mean(-1)).mean()
        return F.cross_entropy(flat, goal, label_smoothing=o.smoothing or 0.0)

    return loss


def lm_data(o):
    g = torch.Generator().manual_seed(7)
    data = torch.randint(1, V, (3, B, T), generator=g)
    if o.pad:
        data[:, 1, 5:] = 0
        data[:, 2, 8:] = 0
    return [(d,) for d in data]


def lm(o, dbg):
    model = LM(o)
    reset(model)
    if o.tie == "copied":  # tied in the golden run; here only equal at the start
        model.head.weight.data.copy_(model.embed.weight.data)
    if o.qkv == "fused":
        for i, blk in enumerate(model.blocks):
            ref = reset(LM(Options())).blocks[i].attn
            blk.attn.qkv.weight.data.copy_(torch.cat((ref.q.weight, ref.k.weight, ref.v.weight)).data)
    if o.mlp == "fused":
        for i, blk in enumerate(model.blocks):
            ref = reset(LM(Options())).blocks[i].mlp
            blk.mlp.gate_up.weight.data.copy_(torch.cat((ref.gate.weight, ref.up.weight)).data)
    torch.manual_seed(1)
    if o.freeze:
        for n, p in model.named_parameters():
            if o.freeze in n:
                p.requires_grad_(False)
    if o.bf16:
        model = model.bfloat16()
    if o.eval:
        model.eval()
    loss = lm_loss(o)
    if o.autocast:
        inner = loss

        def loss(m, b):
            with torch.autocast("cpu", torch.bfloat16):
                return inner(m, b)

    if o.hook == "half_grad":  # a forgotten experiment
        model.blocks[0].mlp.down.weight.register_hook(lambda g: g * 0.5)
    if o.hook == "identity":
        model.blocks[0].mlp.down.weight.register_hook(lambda g: g.clone())
    after = None
    if o.ema:
        model.teacher = copy.deepcopy(model.blocks[0].norm1)
        for p in model.teacher.parameters():
            p.requires_grad_(False)
        model.shadow = nn.Linear(D, V, bias=False).requires_grad_(False)
        model.shadow.weight.data.copy_(model.head.weight.data)

        @torch.no_grad()
        def after(m):
            s, w = m.shadow.weight, m.head.weight
            if o.ema == "lerp":
                s.lerp_(w, 0.1)
            elif o.ema == "reversed":
                s.mul_(0.1).add_(w, alpha=0.9)
            elif o.ema == "step_decay":
                s.mul_(0.5).add_(w, alpha=0.5)
            else:
                s.mul_(0.9).add_(w, alpha=0.1)

        plain = loss

        def loss(m, b):  # distils from the average
            student = plain(m, b)
            with torch.no_grad():
                goal = m.shadow(m.embed(b[0])).softmax(-1)
            return student + F.kl_div(m.head(m.embed(b[0])).log_softmax(-1), goal, reduction="batchmean")

    return train(o, dbg, model, lm_data(o), loss, after)


# ---------------------------------------------------------------- 2: static cache
class CacheAttention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, cache, start):
        o, (b, t, _) = self.o, x.shape
        q, k, v = (z.view(b, t, H, HD).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        if cache is None:
            k_all, v_all, end = k, v, t
        else:
            at = start - (1 if o.cache == "shifted" and start else 0)
            at = min(at, T - t)
            if o.cache == "overwrites" and start:
                at = 0
            ks, vs = cache
            if o.cache_copy == "index_copy":
                index = torch.arange(at, at + t)
                k_all, v_all = ks.index_copy(2, index, k), vs.index_copy(2, index, v)
            else:
                k_all, v_all = ks.clone(), vs.clone()
                k_all[:, :, at : at + t] = k
                v_all[:, :, at : at + t] = v
            if o.cache == "stale_v" and start:
                v_all = torch.cat((vs[:, :, :start], torch.zeros_like(v)), 2)
            cache[0], cache[1] = k_all, v_all
            end = T
        rows = torch.arange(start, start + t)[:, None]
        allowed = torch.arange(end)[None] <= rows
        if o.cache == "unmasked" and cache is not None:
            allowed = torch.ones(t, end, dtype=torch.bool)
        if o.cache == "local_mask" and cache is not None:
            allowed = torch.arange(end)[None] <= torch.arange(t)[:, None]
        y = F.scaled_dot_product_attention(q, k_all, v_all, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(b, t, D))


class CacheLM(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attn, self.norm, self.head = CacheAttention(o), nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, tokens, cache=None, start=0):
        at = start if self.o.cache != "positions" else 0
        x = self.embed(tokens) + self.pos(torch.arange(at, at + tokens.shape[1]))
        return self.head(self.norm(x + self.attn(x, cache, start)))


def cache_lm(o, dbg):
    model = reset(CacheLM(o))

    def loss(m, batch):
        (tokens,) = batch
        if o.cache is None:
            logits = m(tokens)
        else:
            cache = [torch.zeros(B, H, T, HD), torch.zeros(B, H, T, HD)]
            logits = torch.cat([m(tokens[:, i : i + T // 2], cache, i) for i in (0, T // 2)], 1)
        return F.cross_entropy(logits[:, :-1].reshape(-1, V), tokens[:, 1:].reshape(-1))

    return train(o, dbg, model, lm_data(Options()), loss)


# ---------------------------------------------------------------- 3: encoder with padding
class Encoder(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(V, D, padding_idx=None if o.no_padding_idx else 0)
        self.pos = nn.Embedding(T, D)
        self.seg = nn.Embedding(2, D)
        self.norm0 = nn.LayerNorm(D, eps=o.enc_eps or 1e-5)
        self.layer = nn.TransformerEncoderLayer(
            D,
            H,
            2 * D,
            dropout=o.p or 0.0,
            batch_first=True,
            norm_first=bool(o.norm_first),
            activation=o.enc_act or "gelu",
        )
        self.out = nn.Linear(D, 3)

    def forward(self, tokens):
        o = self.o
        pad = tokens == 0
        where = torch.arange(tokens.shape[1])
        if o.positions == "fairseq":
            where = (torch.cumsum(~pad, 1) * ~pad).clamp(max=T - 1)
        x = self.embed(tokens) + self.pos(where)
        if not o.no_segment:
            x = x + self.seg(torch.zeros_like(tokens))
        x = self.norm0(x)
        if o.norm_by_hand:
            pass
        mask = None if o.enc_mask == "none" else (~pad if o.enc_mask == "inverted" else pad)
        if o.enc_mask == "float":
            mask = torch.zeros(pad.shape).masked_fill(pad, float("-inf"))
        if o.parts:
            h = x
            a = self.layer.self_attn(h, h, h, key_padding_mask=mask, need_weights=o.parts == "weights")[0]
            h = self.layer.norm1(h + a)
            h = self.layer.norm2(h + self.layer.linear2(F.gelu(self.layer.linear1(h))))
            x = h
        else:
            x = self.layer(x, src_key_padding_mask=mask)
        if o.pool == "cls":
            return self.out(x[:, 0])
        if o.pool == "max":
            return self.out(x.masked_fill(pad[..., None], -1e9).amax(1))
        if o.pool == "all":
            return self.out(x.mean(1))
        if o.pool == "einsum":
            w = (~pad).float() / (~pad).sum(1, keepdim=True)
            return self.out(torch.einsum("btd,bt->bd", x, w))
        return self.out((x * ~pad[..., None]).sum(1) / (~pad).sum(1, keepdim=True))


def encoder(o, dbg):
    model = reset(Encoder(o))
    with torch.no_grad():
        model.embed.weight[0] = 0
    g = torch.Generator().manual_seed(3)
    label = torch.randint(0, 3, (3, B), generator=g)
    weight = torch.tensor([1.0, 2.0, 0.5])

    def loss(m, batch):
        tokens, y = batch
        z = m(tokens)
        if o.enc_loss == "weighted":
            return F.cross_entropy(z, y, weight=weight)
        if o.enc_loss == "weighted_plain_mean":
            return (F.cross_entropy(z, y, weight=weight, reduction="none")).mean()
        if o.enc_loss == "weighted_hand":
            w = weight[y]
            return (F.cross_entropy(z, y, reduction="none") * w).sum() / w.sum()
        if o.enc_loss == "softmax_twice":
            return F.cross_entropy(z.softmax(-1), y)
        if o.enc_loss == "focal":
            p = z.softmax(-1).gather(1, y[:, None])[:, 0]
            return (-((1 - p) ** 2) * p.log()).mean()
        if o.enc_loss == "focal_exp":
            ce = F.cross_entropy(z, y, reduction="none")
            pt = torch.exp(-ce)
            if o.focal_bug:
                pt = pt.detach()
            return ((1 - pt) ** 2 * ce).mean()
        return F.cross_entropy(z, y)

    data = [(d[0], y) for d, y in zip(lm_data(Options(pad=True)), label)]
    return train(o, dbg, model, data, loss)


# ---------------------------------------------------------------- 4: conv net
class Conv(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.c1 = nn.Conv2d(3, 8, 3, padding=1, bias=False, padding_mode=o.padding_mode or "zeros")
        self.norm1 = nn.BatchNorm2d(8, eps=o.bn_eps or 1e-5, momentum=o.bn_momentum or 0.1)
        self.c2 = nn.Conv2d(8, 8, 3, padding=o.dilation or 1, dilation=o.dilation or 1, groups=o.groups_conv or 1)
        self.norm2 = nn.GroupNorm(o.gn_groups or 4, 8)
        self.c3 = nn.Conv2d(8, 6, 1)
        self.relu = nn.ReLU(inplace=bool(o.relu_inplace))
        self.fc = nn.Linear(6 * 16, 5)

    def forward(self, x):
        o = self.o
        if o.channels_last:
            x = x.to(memory_format=torch.channels_last)
        if o.unfold:
            b = x.shape[0]
            cols = F.unfold(x, 3, padding=1)
            h = (self.c1.weight.flatten(1) @ cols).view(b, 8, 8, 8)
        else:
            h = self.c1(x)
        if o.bn_hand:
            mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=o.bn_hand == "unbiased")
            with torch.no_grad():
                n, _ = h.numel() / 8, self.norm1.num_batches_tracked.add_(1)
                self.norm1.running_mean.lerp_(mean, 0.1)
                self.norm1.running_var.lerp_(var * (1 if o.bn_running == "biased" else n / (n - 1)), 0.1)
            y = (h - mean[:, None, None]) * torch.rsqrt(var + 1e-5)[:, None, None]
            h = y * self.norm1.weight[:, None, None] + self.norm1.bias[:, None, None]
        else:
            h = self.norm1(h)
        h = self.relu(h)
        skip = h
        if o.relu_on_skip:  # writes into the residual
            y = self.c2(F.dropout(h, 0.0).mul_(0.9))
            h = self.norm2(y)
        elif o.skip_inplace:
            y = self.norm2(self.c2(h * 0.9))
            h = y
        else:
            h = self.norm2(self.c2(h * 0.9))
        h = F.relu(h + skip)
        if o.down == "avg":
            h = F.avg_pool2d(h, 2)
        elif o.down == "stride":
            h = h[:, :, ::2, ::2]
        elif o.down == "adaptive":
            h = F.adaptive_max_pool2d(h, 4)
        elif o.down == "reshape":
            h = h.reshape(h.shape[0], 8, 4, 2, 4, 2).amax((3, 5))
        else:
            h = F.max_pool2d(h, 2)
        if o.as_linear:
            h = F.linear(h.permute(0, 2, 3, 1), self.c3.weight[:, :, 0, 0], self.c3.bias).permute(0, 3, 1, 2)
        else:
            h = self.c3(h)
        if o.up:
            h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=o.up == "corners")
            h = F.avg_pool2d(h, 3, 2, 1, count_include_pad=o.count_pad is None)
        if o.flat == "hwc":
            return self.fc(h.permute(0, 2, 3, 1).flatten(1))
        return self.fc(h.flatten(1))


def conv(o, dbg):
    model = reset(Conv(o))
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if o.bn_eval:
        model.norm1.eval()
    if o.bf16:
        model = model.bfloat16()
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(3, B, 3, 8, 8, generator=g), torch.randint(0, 5, (3, B), generator=g)
    if o.normalise == "wrong_std":
        x = x / 1.1
    if o.bgr:
        x = x.flip(2)

    def loss(m, batch):
        a, b = batch
        z = m(a.bfloat16() if o.bf16 else a)
        if o.conv_loss == "bce":
            return F.binary_cross_entropy_with_logits(z, F.one_hot(b, 5).float())
        if o.conv_loss == "bce_hand":
            goal = F.one_hot(b, 5).float()
            return (F.softplus(z) - z * goal).mean()
        if o.conv_loss == "bce_sum":
            return F.binary_cross_entropy_with_logits(z, F.one_hot(b, 5).float(), reduction="sum") / len(b)
        if o.conv_loss == "mse":
            return F.mse_loss(z.softmax(-1), F.one_hot(b, 5).float())
        return F.cross_entropy(z.float(), b)

    return train(o, dbg, model, list(zip(x, y)), loss)


# ---------------------------------------------------------------- 5: mixture of experts
class MoE(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed, self.router = nn.Embedding(V, D), nn.Linear(D, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, D, bias=False), nn.GELU(), nn.Linear(D, D, bias=False)) for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, tokens):
        o = self.o
        x = self.embed(tokens).reshape(-1, D)
        h = self.norm(x)
        logits = self.router(h)
        p = logits.softmax(-1)
        if o.moe_route == "softmax_after":
            w, chosen = logits.topk(2, -1)
            w = w.softmax(-1)
        else:
            w, chosen = p.topk(1 if o.moe_route == "top1" else 2, -1)
            if o.moe_route != "unnormalised":
                w = w / w.sum(-1, keepdim=True)
        if o.moe_route == "detached":
            w = w.detach()
        if o.moe == "dense":
            gate = torch.zeros_like(p).scatter(1, chosen, w)
            every = torch.stack([e(h) for e in self.experts], 1)
            y = (every * gate[..., None]).sum(1)
        elif o.moe == "sorted":
            flat = chosen.flatten()
            order = flat.argsort(stable=True)
            token = order // chosen.shape[1]
            parts = h[token].split(torch.bincount(flat, minlength=4).tolist())
            done = torch.cat([e(z) for e, z in zip(self.experts, parts)])
            weight = w.flatten()[order] if o.moe_bug != "unsorted_weights" else w.flatten()
            y = torch.zeros_like(h).index_add(0, token, done * weight[:, None])
        else:
            y = torch.zeros_like(h)
            for i, e in enumerate(self.experts):
                t, k = (chosen == i).nonzero(as_tuple=True)
                if o.moe_bug == "capacity":
                    t, k = t[:18], k[:18]
                if o.moe_bug == "on_input":
                    y = y.index_add(0, t, e(h[t] * w[t, k, None]))
                elif o.moe_bug == "expert_twice" and i == 2:
                    y = y.index_add(0, t, self.experts[1](h[t]) * w[t, k, None])
                else:
                    y = y.index_add(0, t, e(h[t]) * w[t, k, None])
        share = F.one_hot(chosen, 4).float().sum(1).mean(0)
        aux = 4 * (share * p.mean(0)).sum()
        if o.moe_aux == "detached":
            aux = aux.detach()
        if o.moe_aux == "logits":
            aux = 4 * (share * logits.mean(0)).sum()
        return self.head(x + y).view(*tokens.shape, V), aux


def moe(o, dbg):
    model = reset(MoE(o))

    def loss(m, batch):
        logits, aux = m(batch[0])
        return F.cross_entropy(logits[:, :-1].reshape(-1, V), batch[0][:, 1:].reshape(-1)) + 0.1 * aux

    return train(o, dbg, model, lm_data(Options()), loss)


# ---------------------------------------------------------------- 6: LoRA
class LoraLinear(nn.Module):
    def __init__(self, base, o, r=4, alpha=16):
        super().__init__()
        self.o, self.base_layer = o, base
        if not o.base_trains:
            base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, r, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(r, base.out_features, bias=False)})
        self.scaling = alpha / r
        if o.lora == "unscaled":
            self.scaling = 1.0
        if o.lora == "rs":
            self.scaling = alpha / math.sqrt(r)
        if o.lora == "b_frozen":
            self.lora_B.requires_grad_(False)

    def forward(self, x):
        a, b = self.lora_A["default"], self.lora_B["default"]
        if self.o.lora == "merged":
            return F.linear(x, self.base_layer.weight + (b.weight @ a.weight) * self.scaling, self.base_layer.bias)
        if self.o.lora == "on_input":
            return self.base_layer(x) + b(a(x * self.scaling))
        if self.o.lora == "from_output":
            return self.base_layer(x) + b(a(F.gelu(x))) * self.scaling
        return self.base_layer(x) + b(a(x)) * self.scaling


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2, self.head = nn.Linear(16, D), nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, 4)

    def forward(self, x, labels=None):
        h = F.gelu(self.norm(self.fc1(x)))
        z = self.head(F.gelu(self.fc2(h)))
        if labels is None:
            return z
        return {"loss": F.cross_entropy(z, labels), "logits": z}


def net_data(rows=B):
    g = torch.Generator().manual_seed(11)
    return list(zip(torch.randn(4, rows, 16, generator=g), torch.randint(0, 4, (4, rows), generator=g)))


def lora(o, dbg):
    model = reset(Net())
    model.requires_grad_(False)
    if o.lora == "peft":
        import peft

        config = peft.LoraConfig(r=4, lora_alpha=o.alpha or 16, target_modules=["fc1", "fc2"], use_rslora=bool(o.rs))
        model = peft.get_peft_model(model, config)
        inner = model.base_model.model
    else:
        model.fc1 = LoraLinear(model.fc1, o)
        if not o.fc2_plain:
            model.fc2 = LoraLinear(model.fc2, o)
        inner = model
    g = torch.Generator().manual_seed(2)
    for n in ("fc1", "fc2"):
        layer = getattr(inner, n)
        if hasattr(layer, "lora_A"):
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a.data.copy_(torch.randn(a.shape, generator=g) * 0.2)
            b.data.copy_(torch.randn(b.shape, generator=g) * 0.2)
    if o.head_trains:
        inner.head.requires_grad_(True)
    return train(o, dbg, model, net_data(), lambda m, b: F.cross_entropy(m(b[0]), b[1]))


# ---------------------------------------------------------------- 7: frameworks against a plain loop
def net(o, dbg):
    """The plain loop, Trainer, Lightning or accelerate; lr 1e-2 and AdamW without decay unless an option says."""
    model = reset(Net())
    data = net_data()
    o = Options({"wd": 0.0, **o})
    if o.frame == "trainer":
        from transformers import Trainer, TrainingArguments

        from msprobe.pytorch import MsprobeCallback

        rows = [{"x": a, "labels": b} for x, y in data for a, b in zip(x, y)]

        class Ordered(Trainer):
            def _get_train_sampler(self, *args, **kwargs):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        n = o.frame_accum or 1
        arguments = TrainingArguments(
            output_dir="/tmp/unseen7_hf",
            per_device_train_batch_size=B // n,
            gradient_accumulation_steps=n,
            max_steps=2,
            learning_rate=1e-2,
            weight_decay=o.frame_wd or 0.0,
            lr_scheduler_type=o.frame_sched or "constant",
            max_grad_norm=o.frame_clip or 0.0,
            adam_beta2=o.frame_beta2 or 0.999,
            optim=o.frame_optim or "adamw_torch",
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            seed=1,
        )
        t = Ordered(model=model, args=arguments, train_dataset=rows)
        t.add_callback(MsprobeCallback(debugger=dbg.settings))
        t.train()
        return [], model
    if o.frame == "lightning":
        import logging

        import lightning as L

        from msprobe.pytorch import MsprobeCallback

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

        class Lit(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = model

            def training_step(self, batch, _):
                return F.cross_entropy(self.net(batch[0]), batch[1]) * (o.lit_factor or 1.0)

            def configure_optimizers(self):
                return optimizer_of(o, self.net)

        n = o.frame_accum or 1
        parts = [(a, b) for x, y in data[:2] for a, b in zip(x.chunk(n), y.chunk(n))]
        t = L.Trainer(
            max_steps=2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=o.frame_clip,
            gradient_clip_algorithm=o.clip_algorithm,
            accumulate_grad_batches=n,
            precision=o.precision or "32-true",
        )
        t.callbacks.append(MsprobeCallback(debugger=dbg.settings))
        t.fit(Lit(), torch.utils.data.DataLoader(parts, batch_size=None, shuffle=False))
        return [], model
    if o.frame == "accelerate":
        from accelerate import Accelerator

        n = o.frame_accum or 1
        acc = Accelerator(cpu=True, gradient_accumulation_steps=n)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        model_, optimizer = acc.prepare(model, optimizer)
        losses = []
        for x, y in data[:2]:
            dbg.start(model_)
            for a, b in zip(x.chunk(n), y.chunk(n)):
                with acc.accumulate(model_):
                    loss = F.cross_entropy(model_(a), b)
                    if o.divides_again:
                        loss = loss / n
                    acc.backward(loss)
                    if o.clip and (acc.sync_gradients or o.clip_each):
                        acc.clip_grad_norm_(model_.parameters(), o.clip)
                    optimizer.step()
                    optimizer.zero_grad()
            dbg.stop()
            dbg.step()
            losses.append(loss.item())
        return losses, model
    model.o = o

    def loss(m, b):
        return m(b[0], b[1])["loss"]

    if o.clone_in:

        def loss(m, b):
            z = m(b[0].clone().contiguous())
            return -z.log_softmax(-1)[torch.arange(len(b[1])), b[1]].mean()

    return train(o, dbg, model, data, loss)


# ---------------------------------------------------------------- 8: GRU, VAE, contrastive, PPO, GAN
class Rnn(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embed, self.gru, self.head = nn.Embedding(V, D), nn.GRU(D, D, batch_first=True), nn.Linear(D, V)

    def forward(self, tokens):
        o, x = self.o, self.embed(tokens)
        if o.rnn is None:
            return self.head(self.gru(x)[0])
        h, out = torch.zeros(len(tokens), D), []
        for t in range(tokens.shape[1]):
            gi = F.linear(x[:, t], self.gru.weight_ih_l0, self.gru.bias_ih_l0)
            gh = F.linear(h, self.gru.weight_hh_l0, self.gru.bias_hh_l0)
            (ir, iz, inn), (hr, hz, hn) = gi.chunk(3, 1), gh.chunk(3, 1)
            r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
            n = torch.tanh(inn + r * hn)
            if o.rnn == "update_flipped":
                h = (1 - z) * h + z * n
            else:
                h = (1 - z) * n + z * h
            if o.rnn == "detached":
                h = h.detach() if t % 4 == 3 else h
            out.append(h)
        return self.head(torch.stack(out, 1))


def rnn(o, dbg):
    model = reset(Rnn(o))
    return train(o, dbg, model, lm_data(Options()), lm_loss(Options()))


class Vae(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.enc, self.mu, self.logvar, self.dec = nn.Linear(16, D), nn.Linear(D, 4), nn.Linear(D, 4), nn.Linear(4, 16)

    def forward(self, x):
        h = torch.tanh(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        std = logvar.exp().sqrt() if self.o.vae == "sqrt_exp" else (0.5 * logvar).exp()
        if self.o.vae == "variance":
            std = logvar.exp()
        if self.o.vae == "extra_draw":
            torch.randn(3)
        return self.dec(mu + std * torch.randn_like(std)), mu, logvar


def vae(o, dbg):
    model = reset(Vae(o))

    def loss(m, batch):
        out, mu, logvar = m(batch[0])
        rec = F.mse_loss(out, batch[0], reduction="sum") / len(out)
        if o.vae_loss == "square":
            rec = (out - batch[0]).pow(2).sum(1).mean()
        if o.vae_loss == "mean":
            rec = F.mse_loss(out, batch[0])
        if o.vae_loss == "distribution":
            q = torch.distributions.Normal(mu, (0.5 * logvar).exp())
            kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
        elif o.vae_loss == "kl_sign":
            kl = -0.5 * (1 + logvar - mu.pow(2) + logvar.exp()).sum(1).mean()
        else:
            kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return rec + 0.5 * kl

    return train(o, dbg, model, net_data(), loss)


class Siamese(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.fc, self.norm, self.proj = nn.Linear(16, D), nn.LayerNorm(D), nn.Linear(D, 8)
        self.log_t = nn.Parameter(torch.zeros(()))

    def forward(self, a, b):
        o = self.o
        if o.batched:
            za, zb = self.proj(F.relu(self.norm(self.fc(torch.cat((a, b)))))).chunk(2)
        else:
            za, zb = (self.proj(F.relu(self.norm(self.fc(z)))) for z in (a, b))
        if o.con == "not_normalised":
            pass
        elif o.con == "rsqrt":
            za, zb = (z * z.square().sum(-1, keepdim=True).rsqrt() for z in (za, zb))
        elif o.con == "dim0":
            za, zb = F.normalize(za, dim=0), F.normalize(zb, dim=0)
        else:
            za, zb = F.normalize(za, dim=-1), F.normalize(zb, dim=-1)
        if o.con == "stop":
            zb = zb.detach()
        s = za @ zb.T * (self.log_t if o.con == "no_exp" else self.log_t.exp())
        return torch.einsum("id,jd->ij", za, zb) * self.log_t.exp() if o.con == "einsum" else s


def siamese(o, dbg):
    model = reset(Siamese(o))

    def loss(m, batch):
        x, _ = batch
        s = m(x, x + 0.3 * x.flip(1))
        goal = torch.arange(len(x))
        if o.con_loss == "one_way":
            return F.cross_entropy(s, goal)
        if o.con_loss == "diag":
            d = s.diag()
            return ((torch.logsumexp(s, 0) - d).mean() + (torch.logsumexp(s, 1) - d).mean()) / 2
        return (F.cross_entropy(s, goal) + F.cross_entropy(s.T, goal)) / 2

    return train(o, dbg, model, net_data(), loss)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.policy, self.value = nn.Linear(16, D), nn.Linear(D, 4), nn.Linear(D, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.policy(h), self.value(h)[:, 0]


def ppo(o, dbg):
    model = reset(Actor())
    g = torch.Generator().manual_seed(9)
    old, reward = -1.4 + 0.3 * torch.randn(4, 8, generator=g), torch.randn(4, 8, generator=g)
    data = [(x, y, a, b) for (x, y), a, b in zip(net_data(8), old, reward)]

    def loss(m, batch):
        x, action, old_lp, ret = batch
        logits, value = m(x)
        if o.ppo == "distribution":
            dist = torch.distributions.Categorical(logits=logits)
            lp, entropy = dist.log_prob(action), dist.entropy().mean()
        else:
            all_lp = logits.log_softmax(-1)
            lp = all_lp.gather(1, action[:, None])[:, 0]
            entropy = -(all_lp.exp() * all_lp).sum(-1).mean()
        adv = ret - (value if o.ppo == "value_not_detached" else value.detach())
        if o.ppo != "raw_advantage":
            adv = (adv - adv.mean()) / (adv.std(unbiased=o.ppo != "biased_std") + 1e-8)
        ratio = (lp - old_lp).exp()
        eps = 0.2
        if o.ppo == "maximum":
            pg = torch.max(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
        elif o.ppo == "negated":
            return (
                torch.max(-adv * ratio, -adv * ratio.clamp(1 - eps, 1 + eps)).mean()
                + 0.5 * (value - ret).square().mean()
                - 0.01 * entropy
            )
        elif o.ppo == "clip_wide":
            pg = torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + 1.4 * eps) * adv)
        else:
            pg = torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv)
        vl = F.mse_loss(value, ret)
        if o.ppo == "value_broadcast":
            vl = F.mse_loss(value[:, None].expand(-1, 8), ret.expand(8, -1))
        return -pg.mean() + 0.5 * vl + (0.01 if o.ppo == "entropy_sign" else -0.01) * entropy

    return train(o, dbg, model, data, loss)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(8, D), nn.ReLU(), nn.Linear(D, 16))
        self.dis = nn.Sequential(nn.Linear(16, D), nn.LeakyReLU(0.2), nn.Linear(D, 1))

    def forward(self, z):
        return self.gen(z)


def gan(o, dbg):
    model = reset(Gan())
    og, od = (torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.5, 0.999)) for m in (model.gen, model.dis))
    g = torch.Generator().manual_seed(4)
    losses = []
    bce = F.binary_cross_entropy_with_logits
    for real, _ in net_data()[:2]:
        z = torch.randn(B, 8, generator=g)
        dbg.start(model)
        fake = model(z)
        if o.gan == "not_detached":
            d_loss = bce(model.dis(real), torch.ones(B, 1)) + bce(model.dis(fake), torch.zeros(B, 1))
            d_loss.backward(retain_graph=True)
            og.zero_grad()
        elif o.gan == "softplus":
            d_loss = F.softplus(-model.dis(real)).mean() + F.softplus(model.dis(fake.detach())).mean()
            d_loss.backward()
        else:
            if o.gan == "one_call":
                both = model.dis(torch.cat((real, fake.detach())))
                d_loss = bce(both[:B], torch.ones(B, 1)) + bce(both[B:], torch.zeros(B, 1))
            else:
                d_loss = bce(model.dis(real), torch.full((B, 1), 0.9 if o.gan == "smooth_real" else 1.0))
                d_loss = d_loss + bce(model.dis(fake.detach()), torch.zeros(B, 1))
            d_loss.backward()
        if o.gan == "not_detached":  # the generator is used again below
            od.step()
            fake = model.gen(z)
        else:
            od.step()
        if o.gan != "dis_not_cleared":
            od.zero_grad()
        if o.gan == "saturating":
            g_loss = -bce(model.dis(fake), torch.zeros(B, 1))
        else:
            g_loss = bce(model.dis(fake), torch.ones(B, 1))
        g_loss.backward()
        og.step()
        og.zero_grad()
        if o.gan != "dis_not_cleared":
            od.zero_grad()
        dbg.stop()
        dbg.step()
        losses += [d_loss.item(), g_loss.item()]
    return losses, model


PROGRAMS = {f.__name__: f for f in (lm, cache_lm, encoder, conv, moe, lora, net, rnn, vae, siamese, ppo, gan)}


def cast(o, table, x):
    return table.to(x.dtype) if o.bf16 else table
