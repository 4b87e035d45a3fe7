"""A transformer over the columns of a table, in plain functions: the weights are in a dict, autocast to bfloat16."""

import sys

import torch
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger

NUMERIC, CATEGORIES, DIM, HEADS, DEPTH, CLASSES = 5, (4, 7, 3), 24, 3, 2, 5


def new_weights(seed):
    rng = torch.Generator().manual_seed(seed)
    dtype = torch.get_default_dtype()

    def normal(*shape, std=None):
        values = torch.randn(*shape, generator=rng, dtype=dtype) * (std or shape[-1] ** -0.5)
        return values.requires_grad_()

    def constant(value, *shape):
        return torch.full(shape, value, dtype=dtype, requires_grad=True)

    weights = {"numeric.weight": normal(NUMERIC, DIM, std=0.5), "numeric.bias": normal(NUMERIC, DIM, std=0.2)}
    weights["categories"] = normal(sum(CATEGORIES), DIM, std=0.5)
    weights["cls"] = normal(1, 1, DIM, std=0.5)
    for i in range(DEPTH):
        weights[f"{i}.qkv"] = normal(3 * DIM, DIM)
        weights[f"{i}.out"] = normal(DIM, DIM)
        weights[f"{i}.ff1"] = normal(4 * DIM, DIM)
        weights[f"{i}.ff2"] = normal(DIM, 2 * DIM)
        for norm in ("ln1", "ln2"):
            weights[f"{i}.{norm}.w"] = constant(1.0, DIM)
            weights[f"{i}.{norm}.b"] = constant(0.0, DIM)
    weights["head.ln.w"], weights["head.ln.b"] = constant(1.0, DIM), constant(0.0, DIM)
    weights["head.w"], weights["head.b"] = normal(CLASSES, DIM), constant(0.0, CLASSES)
    return weights


def tokens_of(w, numbers, kinds):
    starts = torch.tensor([0, *CATEGORIES[:-1]]).cumsum(0)
    columns = numbers[..., None] * w["numeric.weight"] + w["numeric.bias"]
    chosen = F.embedding(kinds + starts, w["categories"])
    return torch.cat([w["cls"].expand(len(numbers), -1, -1), columns, chosen], dim=1)


def attend(w, i, x):
    b, n, _ = x.shape
    q, k, v = F.linear(x, w[f"{i}.qkv"]).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
    scores = torch.matmul(q, k.transpose(2, 3)) * (DIM // HEADS) ** -0.5
    mixed = torch.matmul(F.softmax(scores, dim=-1), v)
    return F.linear(mixed.transpose(1, 2).reshape(b, n, DIM), w[f"{i}.out"])


def forward(w, numbers, kinds):
    x = tokens_of(w, numbers, kinds)
    for i in range(DEPTH):
        x = x + attend(w, i, F.layer_norm(x, (DIM,), w[f"{i}.ln1.w"], w[f"{i}.ln1.b"], 1e-5))
        y = F.layer_norm(x, (DIM,), w[f"{i}.ln2.w"], w[f"{i}.ln2.b"], 1e-5)
        y, gate = F.linear(y, w[f"{i}.ff1"]).chunk(2, dim=-1)
        x = x + F.linear(y * F.relu(gate), w[f"{i}.ff2"])
    x = F.layer_norm(x[:, 0], (DIM,), w["head.ln.w"], w["head.ln.b"], 1e-5)
    return F.linear(F.relu(x), w["head.w"], w["head.b"])


def table(step, rows=10):
    rng = torch.Generator().manual_seed(step + 300)
    numbers = torch.rand(rows, NUMERIC, generator=rng, dtype=torch.get_default_dtype()).mul(200).log1p()
    kinds = torch.stack([torch.randint(0, size, (rows,), generator=rng) for size in CATEGORIES], dim=1)
    return numbers, kinds, torch.randint(0, CLASSES, (rows,), generator=rng)


w = new_weights(17)
model = torch.nn.ParameterDict({name.replace(".", "_"): torch.nn.Parameter(value) for name, value in w.items()})
w = {name: model[name.replace(".", "_")] for name in w}
frequency = torch.tensor([1.0, 0.5, 2.0, 1.5, 0.8])
optimizer = torch.optim.Adam(w.values(), lr=4e-3, betas=(0.9, 0.98), amsgrad=True)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="L1", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start()
    numbers, kinds, answers = table(step)
    numbers = (numbers - numbers.mean(0)) / (numbers.std(0) + 1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = forward(w, numbers, kinds)
    loss = F.cross_entropy(logits.to(frequency.dtype), answers, weight=frequency, label_smoothing=0.05)
    grads = torch.autograd.grad(loss, list(w.values()))
    for weight, grad in zip(w.values(), grads):
        weight.grad = grad
    optimizer.step()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
