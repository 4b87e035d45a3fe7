"""The targets attention_logits, outliers and quantisation: what they see, that it is true, and that nothing changes."""

from __future__ import annotations

import gc
import json
import math
import weakref
from pathlib import Path

import numpy as np
import pytest
import sick_attention as sick
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.config.errors import ConfigError
from msprobe.pytorch import Monitor, PrecisionDebugger
from msprobe.pytorch.watch.attention import _PLACES, largest_logits
from msprobe.pytorch.watch.health import largest_and_median
from msprobe.stats.damage import measure_damage, worst_of
from msprobe.stats.formats import BY_NAME
from msprobe.watch.health import sample_step
from msprobe.watch.reading.export import export
from msprobe.watch.reading.run import Run
from msprobe.watch.settings import load

ORIGINALS = [getattr(owner, name) for owner, name in _PLACES]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def watch(path, model, run, steps=3, rate=1e-2, debugger=None, **config):
    """Trains with `run(model)`, which returns the loss; returns the losses and the weights."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    monitor = Monitor(model, optimizer, {"dump_path": str(path), **config}) if path else None
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        if debugger is not None:
            debugger.start(model)
        loss = run(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if debugger is not None:
            debugger.stop()
            debugger.step()
        if monitor is not None:
            monitor.step(loss=loss)
    if monitor is not None:
        monitor.close()
    assert [getattr(owner, name) for owner, name in _PLACES] == ORIGINALS
    return losses, [one.detach().clone() for one in model.parameters()]


def curves(path, kind, statistic):
    run = Run(Path(path))
    rank = run.ranks[0]
    found = {}
    for one in rank.series():
        if one.target.kind == kind:
            steps, values = rank.curve(kind, one.target.name, statistic)
            found[one.target.name] = dict(zip(steps.tolist(), values.tolist()))
    run.close()
    return found


class Attention(nn.Module):
    """Two heads of width 4 over 6 tokens, as scaled_dot_product_attention or in steps."""

    def __init__(self, how, **options):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.how, self.options = how, options
        self.seen = []

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.seen.append((q.detach().double(), k.detach().double()))
        if self.how == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, **self.options)
        logits = q @ k.transpose(-2, -1) / 2
        if self.options.get("is_causal"):
            logits = logits.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
        if self.how == "function":
            return torch.softmax(logits, -1) @ v
        return (logits.softmax(dim=-1) if self.how == "method" else F.softmax(logits, dim=-1)) @ v


BOOL = torch.rand(6, 6, generator=torch.Generator().manual_seed(3)) < 0.5
BIAS = 5 * torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(4))
CASES = {
    "plain": ("sdpa", {}),
    "causal": ("sdpa", {"is_causal": True}),
    "boolean mask": ("sdpa", {"attn_mask": BOOL | torch.eye(6).bool()}),
    "added bias": ("sdpa", {"attn_mask": BIAS}),
    "other scale": ("sdpa", {"scale": 3.0}),
    "F.softmax": ("F", {}),
    "torch.softmax, causal": ("function", {"is_causal": True}),
    "Tensor.softmax": ("method", {}),
}


def expected(q, k, options):
    logits = (q @ k.transpose(-2, -1)) * options.get("scale", 0.5)
    mask = options.get("attn_mask")
    if options.get("is_causal"):
        logits = logits.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return logits.amax(dim=(0, 2, 3)).tolist()


@pytest.mark.parametrize("case", CASES)
def test_the_largest_logit_of_each_head_is_exact_and_below_its_bound(case, tmp_path):
    how, options = CASES[case]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Attention(how, **options))
    x = torch.randn(3, 6, 8)
    logits = {"exact_every": 2}
    watch(tmp_path, model, lambda m: m(x).square().mean(), 4, targets=["attention_logits"], attention_logits=logits)
    exact, bound = (curves(tmp_path, "attention_logits", which) for which in ("max", "bound"))
    assert list(exact) == ["1.head0", "1.head1"]
    for step, (q, k) in enumerate(model[1].seen):
        for head, value in enumerate(expected(q, k, options)):
            name = f"1.head{head}"
            if how != "sdpa":  # the logits exist: every step is exact, and there is no bound
                assert exact[name][step] == pytest.approx(value, rel=1e-5)
                assert not bound[name]
                continue
            assert bound[name][step] >= value - 1e-6
            assert (step in exact[name]) is (step % 2 == 0)
            if step in exact[name]:
                assert exact[name][step] == pytest.approx(value, rel=1e-5)


def make_llama(attention):
    import transformers as hf

    config = hf.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=16, attn_implementation=attention)
    return hf.LlamaForCausalLM(config)


def make_qwen3(attention):
    import transformers as hf

    more = {"num_key_value_heads": 2, "max_position_embeddings": 16, "head_dim": 8}
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, **more, attn_implementation=attention))


def make_gpt2(attention):
    import transformers as hf

    config = hf.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0)
    config._attn_implementation = attention
    return hf.GPT2LMHeadModel(config)


MODELS = {
    "llama": (make_llama, "model.layers.{}.self_attn"),
    "qwen3": (make_qwen3, "model.layers.{}.self_attn"),
    "gpt2": (make_gpt2, "transformer.h.{}.attn"),
}


def train_language(path, name, attention, **config):
    torch.manual_seed(0)
    model = MODELS[name][0](attention).train()
    data = torch.Generator().manual_seed(1)

    def run(model):
        x = torch.randint(64, (2, 12), generator=data)
        return model(input_ids=x, labels=x).loss

    return watch(path, model, run, **config)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_have_the_same_logits_with_sdpa_and_eager(name, tmp_path):
    logits = {"targets": ["attention_logits"], "attention_logits": {"exact_every": 1}}
    for attention in ("sdpa", "eager"):
        train_language(tmp_path / attention, name, attention, **logits)
    sdpa, eager = (curves(tmp_path / one, "attention_logits", "max") for one in ("sdpa", "eager"))
    assert list(sdpa) == [f"{MODELS[name][1].format(layer)}.head{head}" for layer in (0, 1) for head in range(4)]
    assert list(eager) == list(sdpa)
    for head in sdpa:
        assert sdpa[head][0] == pytest.approx(eager[head][0], rel=1e-4)


@pytest.mark.parametrize("target", sick.HEALTH)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_training_is_bit_identical_with_each_target_alone(target, attention, tmp_path):
    bare = train_language(None, "gpt2", attention)
    options = {"quantisation": {"formats": ["mxfp8", "nvfp4"], "every": 2}} if target == "quantisation" else {}
    watched = train_language(tmp_path, "gpt2", attention, targets=[target], **options)
    assert watched[0] == bare[0]
    assert all(torch.equal(one, other) for one, other in zip(bare[1], watched[1]))
    run = Run(tmp_path)
    assert any(one.target.kind.startswith(target) for one in run.ranks[0].series())
    run.close()


def test_training_is_bit_identical_with_everything_about_low_precision_at_once(tmp_path):
    bare = train_language(None, "gpt2", "sdpa")
    file = tmp_path / "config.json"
    precision = {"formats": ["nvfp4", "mxfp8", "fp8-e4m3"]}
    file.write_text(
        json.dumps({"dump_path": str(tmp_path / "dump"), "level": "mix", "step": [1], "precision": precision})
    )
    debugger = PrecisionDebugger(config_path=str(file))
    health = {"attention_logits": {"exact_every": 1}, "quantisation": {"formats": ["mxfp8", "nvfp4"], "every": 1}}
    targets = ["weight", "grad", "state", "update", "input", "output", *sick.HEALTH]
    options = {"targets": targets, "statistics": "all", "low_precision": "fp8_e4m3"}
    watched = train_language(tmp_path / "watch", "gpt2", "sdpa", debugger=debugger, **options, **health)
    assert watched[0] == bare[0]
    assert all(torch.equal(one, other) for one, other in zip(bare[1], watched[1]))
    assert curves(tmp_path / "watch", "quantisation.nvfp4", "snr")
    assert '"nvfp4":' in (tmp_path / "dump/step1/rank/dump.json").read_text()


class Encoder(nn.Module):
    """MultiheadAttention with dropout; `weights` selects its path without scaled_dot_product_attention."""

    def __init__(self, weights):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.router, self.head = nn.Linear(16, 3), nn.Linear(16, 4)
        self.weights = weights

    def forward(self, x):
        x = self.attn(x, x, x, need_weights=self.weights)[0]
        gate = torch.softmax(self.router(x), dim=-1)  # not attention
        return torch.log_softmax(self.head(x * gate.amax(-1, keepdim=True)), -1)


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_is_seen_and_a_router_is_not(weights, tmp_path):
    def train(path):
        torch.manual_seed(0)
        x = torch.randn(2, 5, 16)
        config = {"targets": sick.HEALTH, "attention_logits": {"exact_every": 1}}
        return watch(path, Encoder(weights), lambda m: m(x).square().mean(), **config)

    bare, watched = train(None), train(tmp_path)
    assert watched[0] == bare[0]
    assert all(torch.equal(one, other) for one, other in zip(bare[1], watched[1]))
    assert list(curves(tmp_path, "attention_logits", "max")) == ["attn.head0", "attn.head1"]


def test_recomputed_attention_counts_once_and_stays_bit_identical(tmp_path):
    class Checkpointed(Attention):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    def train(path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Checkpointed("sdpa"))
        x = torch.randn(3, 6, 8)
        return watch(path, model, lambda m: m(x).square().mean(), **({"targets": sick.HEALTH} if path else {}))

    bare, watched = train(None), train(tmp_path)
    assert watched[0] == bare[0]
    assert all(torch.equal(one, other) for one, other in zip(bare[1], watched[1]))
    assert list(curves(tmp_path, "attention_logits", "bound")) == ["1.head0", "1.head1"]


def test_an_exception_in_the_forward_leaves_the_functions_of_torch_as_they_were(tmp_path):
    class Broken(Attention):
        def forward(self, x):
            super().forward(x)
            raise ValueError("of the script")

    model = nn.Sequential(nn.Linear(8, 8), Broken("sdpa"))
    monitor = Monitor(model, None, {"dump_path": str(tmp_path), "targets": ["attention_logits"]})
    with pytest.raises(ValueError, match="of the script"):
        model(torch.randn(3, 6, 8))
    assert [getattr(owner, name) for owner, name in _PLACES] == ORIGINALS
    monitor.close()


def test_no_tensor_of_the_script_is_kept(tmp_path):
    class Noting(Attention):
        def forward(self, x):
            out = super().forward(x)
            self.seen.clear()
            alive.append(weakref.ref(out))
            return out

    alive = []
    model = nn.Sequential(nn.Linear(8, 8), Noting("sdpa"), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = Monitor(model, optimizer, {"dump_path": str(tmp_path), "targets": sick.HEALTH})
    for _ in range(2):
        loss = model(torch.randn(3, 6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        del loss
        gc.collect()
        assert [one for one in alive if one() is not None] == []
        monitor.step()
    monitor.close()


def test_compiled_models_are_left_alone_and_msprobe_says_so(tmp_path, logged):
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), Attention("sdpa")), backend="eager")
    watch(tmp_path, model, lambda m: m(torch.randn(3, 6, 8)).square().mean(), targets=["attention_logits"])
    assert logged("attention_logits has no effect")


def test_a_model_without_attention_is_named(tmp_path, logged):
    watch(tmp_path, nn.Linear(8, 8), lambda m: m(torch.randn(3, 8)).square().mean(), targets=["attention_logits"])
    assert logged("attention_logits has seen no attention")


@pytest.mark.parametrize("shape", [(64, 64), (4, 128, 32), (3, 5, 7), (70000,), (1,)])
def test_outliers_have_the_largest_magnitude_and_a_median_over_all_channels(shape):
    rng = np.random.default_rng(0)
    values = rng.normal(size=shape).astype(np.float32) * (1 + 9 * (np.arange(shape[-1]) % 4 == 0))
    values.reshape(-1)[0] = -50.0
    for tensor in (torch.from_numpy(values), torch.from_numpy(values).transpose(0, -1)):
        largest, median = largest_and_median(tensor).tolist()
        assert largest == np.abs(values).max()
        assert median == pytest.approx(float(np.median(np.abs(values))), rel=0.15)


def test_the_median_ignores_zeros_and_a_tensor_of_zeros_has_no_outlier():
    assert largest_and_median(torch.tensor([0.0, 0.0, 0.0, 2.0, 0.0, -4.0, 2.0])).tolist() == [4.0, 2.0]
    assert largest_and_median(torch.zeros(5)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("elements", [1, 4096, 4097, 1 << 20, 3 * 5 * 7 * 4096])
def test_a_sample_shares_no_factor_with_the_size(elements):
    assert math.gcd(sample_step(elements), elements) == 1
    assert -(-elements // sample_step(elements)) <= 4096


def test_quantisation_has_the_numbers_of_the_format_for_weight_input_and_gradient(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 32), nn.LayerNorm(32), nn.Linear(32, 16))
    tokens, seen = torch.arange(8), {}

    def run(m):
        x = m[1](m[0](tokens))
        y = m[2](x)
        y.register_hook(lambda gradient: seen.setdefault("output_grad", gradient.clone()))
        seen.setdefault("input", x.detach().clone())
        return (y * torch.linspace(-3, 3, 16)).square().mean()

    rate = {"rate": 0.0, "steps": 3}  # the weights stay as they are
    options = {"formats": ["mxfp8", "nvfp4"], "every": 2}
    watch(tmp_path, model, run, **rate, targets=["quantisation"], quantisation=options)
    seen["weight"] = model[2].weight.detach()
    for form in options["formats"]:
        kind = f"quantisation.{form}"
        assert sorted(curves(tmp_path, kind, "snr")) == ["2.input", "2.output_grad", "2.weight"]
        for role, tensor in seen.items():
            damage = worst_of(measure_damage(tensor.numpy(), BY_NAME[form], role == "weight"))
            numbers = {"snr": damage.snr, "underflow": damage.underflow, "saturation": damage.saturated}
            numbers |= {"scale_range": damage.scale_range, "max": tensor.abs().max().item()}
            numbers |= {"norm": tensor.norm().item()}
            for statistic, value in numbers.items():
                found = curves(tmp_path, kind, statistic)[f"2.{role}"]
                assert list(found) == [0, 2]
                assert found[0] == pytest.approx(value, rel=1e-5), (form, role, statistic)


def test_two_calls_of_a_module_in_a_step_are_one_matrix(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(16, 32)
    for name, parts in (("one", [x]), ("two", [x[:8], x[8:]])):
        model = nn.Linear(32, 16, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.linspace(-1, 1, 512).reshape(16, 32))
        loss = lambda m, parts=parts: sum((m(part) ** 2).sum() for part in parts)  # noqa: E731
        watch(tmp_path / name, model, loss, steps=1, rate=0.0, targets=["quantisation", "outliers"])
    for statistic in ("norm", "max", "snr", "underflow"):
        one, two = (curves(tmp_path / name, "quantisation.mxfp8", statistic) for name in ("one", "two"))
        rel = 0.1 if statistic == "snr" else 1e-5  # blocks along the rows end elsewhere
        assert one["input"][0] == pytest.approx(two["input"][0], rel=rel)


def test_a_gradient_scaler_changes_no_number(tmp_path):
    targets = {"targets": ["quantisation"], "alarms": False}
    sick.run(tmp_path / "plain", steps=3, **targets)
    sick.run(tmp_path / "scaled", steps=3, scaler=torch.amp.GradScaler("cpu"), **targets)
    for statistic in ("norm", "max", "snr"):
        plain, scaled = (curves(tmp_path / one, "quantisation.mxfp8", statistic) for one in ("plain", "scaled"))
        assert plain["head.output_grad"][0] == pytest.approx(scaled["head.output_grad"][0], rel=1e-3)


def test_numbers_that_a_step_does_not_have_are_empty_in_an_export(tmp_path):
    sick.run(tmp_path, steps=3, targets=["attention_logits"], attention_logits={"exact_every": 2})
    (path,) = export(tmp_path, "csv", tmp_path / "out")
    lines = [line.split(",") for line in path.read_text().splitlines()]
    head, rows = lines[0], [line for line in lines if line[3] == "blocks.0.head0"]
    assert [row[head.index("max")] != "" for row in rows] == [True, False, True]
    assert all(float(row[head.index("bound")]) > 0 for row in rows)


def test_all_means_the_targets_that_cost_little():
    assert not set(sick.HEALTH) & set(load({"targets": "all"}).targets)
    assert "grad_local" in load({"targets": ["quantisation"]}).targets


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"targets": ["attention_logits"], "attention_logits": {"exact_evry": 3}}, "attention_logits.exact_evry"),
        ({"targets": ["attention_logits"], "attention_logits": {"exact_every": -1}}, "an integer of at least 0"),
        ({"targets": ["attention_logits"], "attention_logits": 3}, 'an object such as {"exact_every": 10}'),
        ({"targets": ["quantisation"], "quantisation": {"formats": ["mxfp9"]}}, "mxfp9"),
        ({"targets": ["quantisation"], "quantisation": {"every": 0}}, "an integer of at least 1"),
        ({"quantisation": {"every": 5}}, 'add "quantisation" to targets'),
        ({"targets": ["outlier"]}, "outliers"),
        ({"alarms": {"noise_flor": 1}}, "noise_floor"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_remedy(config, words):
    with pytest.raises(ConfigError) as error:
        load(config)
    assert words in str(error.value)


def test_a_causal_mask_hides_exactly_the_later_tokens():
    query = torch.eye(6)[None, None]
    key = torch.zeros(1, 1, 6, 6)
    for at in range(6):
        key[0, 0, at, at] = 1.0 + at
        if at:
            key[0, 0, at, at - 1] = 100.0  # the token before it must not see it
    assert largest_logits(query, key, 1.0, None, True).tolist() == [6.0]
    assert largest_logits(query, key, 1.0, None, False).tolist() == [100.0]
