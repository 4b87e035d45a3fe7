"""Regions that must run as without msprobe: fused attention, compiled code; and a complete real model."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import threading
import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from collecting import assert_same, collecting
from torch import nn

from msprobe.pytorch.modules.copies import HOOKS

LEVELS = ["L0", "L1", "mix"]


def attention_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 16)).eval()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grad", ["no_grad", "inference_mode", "frozen"])
def test_an_encoder_layer_in_eval_keeps_its_fused_result(tmp_path, level, grad, logged):
    model, x = attention_model(), torch.randn(2, 5, 16)
    if grad == "frozen":
        model.requires_grad_(False)
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "frozen": torch.enable_grad}[grad]
    with context():
        expected = model(x)
        with collecting(tmp_path, model, level=level) as dump:
            out = model(x)
            again = model(x)
    assert torch.equal(out, expected)
    assert torch.equal(again, expected)
    assert len(logged("may use its fused path")) == 1
    name = "Module.0.TransformerEncoderLayer.forward.{}"
    if level == "L1":
        name = "Torch._fused_TransformerEncoderLayer.{}.forward"
    for number in (0, 1):
        assert_same(dump[name.format(number)]["output"][0], model[0](x))
    after = "Functional.linear.1.forward" if level == "L1" else "Module.1.Linear.forward.1"
    assert after in dump.names


@pytest.mark.parametrize("level", LEVELS)
def test_attention_and_encoder_in_eval_keep_their_fused_results(tmp_path, level):
    torch.manual_seed(2)
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    model = nn.ModuleDict({"attention": attention, "encoder": encoder})
    x, mask = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def run():
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attention(x, x, x, need_weights=False)[0], encoder(x, src_key_padding_mask=mask)

    expected = run()
    with collecting(tmp_path, model, level=level):
        out = run()
    assert all(torch.equal(a, b) for a, b in zip(out, expected))


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("level", LEVELS)
def test_threads_that_call_one_fused_module_lose_no_record(tmp_path, level):
    model, x = attention_model(), torch.randn(4, 32, 16)
    with torch.no_grad():
        expected = model(x)
    found = []

    @torch.no_grad()
    def work():
        found.extend(model(x) for _ in range(30))

    with collecting(tmp_path, model, level=level) as dump:
        in_threads(work, 3)
    assert len(found) == 90
    assert all(torch.equal(one, expected) for one in found)
    assert sum("TransformerEncoderLayer" in name for name in dump.names) == 90
    assert not any("unfinished" in record for record in dump.data.values())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["main", "thread"])
def test_below_a_fused_region_everything_is_fused(tmp_path, level, where):
    torch.manual_seed(2)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = []

    @torch.no_grad()
    def work():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append((encoder(x, src_key_padding_mask=mask), encoder.layers[0](x)))

    work()
    with collecting(tmp_path, nn.ModuleDict({"encoder": encoder}), level=level) as dump:
        work() if where == "main" else in_threads(work, 1)
    assert all(torch.equal(a, b) for a, b in zip(*found))
    if level == "L1":
        assert dump.names == [
            "Torch._fused_TransformerEncoder.0.forward",
            "Torch._fused_TransformerEncoderLayer.0.forward",
        ]
    else:
        first, second = dump.names
        assert first == "Module.encoder.TransformerEncoder.forward.0"
        assert second == "Module.encoder.layers.0.TransformerEncoderLayer.forward.0"
        assert dump[first]["input_kwargs"]["src_key_padding_mask"]["Max"] is True


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_fused_module_that_raises_is_recorded_and_the_next_call_too(tmp_path, level):
    model, x = attention_model(), torch.randn(2, 5, 16)
    with torch.no_grad(), collecting(tmp_path, model, level=level) as dump:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5, 7))
        model(x)
        model.train()
        model(x)
    name = "Module.0.TransformerEncoderLayer.forward.{}"
    assert dump[name.format(0)]["raised"] == "RuntimeError"
    assert_same(dump[name.format(1)]["input_args"][0], x)
    assert dump.construct["Module.0.linear1.Linear.forward.0"] == name.format(2)


class Interrupted(nn.MultiheadAttention):
    times = 0

    def forward(self, *args, **kwargs):
        self.times += 1
        if self.times == 1:
            raise KeyboardInterrupt
        return super().forward(*args, **kwargs)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Interrupted(8, 2)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(self.attention(x, x, x)[0])


@pytest.mark.parametrize("level", LEVELS)
def test_after_an_interrupt_inside_of_a_fused_module_we_look_on(tmp_path, level):
    model, x = Attending().eval(), torch.randn(3, 1, 8)
    with torch.no_grad(), collecting(tmp_path, model, level=level) as dump:
        with pytest.raises(KeyboardInterrupt):
            model(x)
        out = model(x)
        model(x)
    assert torch.equal(out, model(x))
    title = "Torch._fused_Interrupted.{}.forward" if level == "L1" else "Module.attention.Interrupted.forward.{}"
    assert {title.format(1), title.format(2)} <= set(dump.names)
    assert ("Functional.linear.1.forward" if level != "L0" else "Module.linear.Linear.forward.1") in dump.names


def test_in_training_the_inside_of_attention_is_seen(tmp_path):
    model = attention_model().train()
    with collecting(tmp_path, model, level="mix") as dump:
        model(torch.randn(2, 5, 16)).sum().backward()
    assert dump.construct["Module.0.linear1.Linear.forward.0"] == "Module.0.TransformerEncoderLayer.forward.0"
    assert "Module.0.self_attn.MultiheadAttention.backward.0" in dump.names
    out_proj = dump["Module.0.self_attn.out_proj.NonDynamicallyQuantizableLinear.parameters_grad"]
    assert_same(out_proj["weight"][0], model[0].self_attn.out_proj.weight.grad)


# torch.compile. The eager backend compiles nothing by a C++ compiler, but enters and leaves as any other.


@pytest.mark.parametrize("level", LEVELS)
def test_a_compiled_function_is_one_record_and_keeps_its_result(tmp_path, level, logged):
    torch._dynamo.reset()

    def function(x, y):
        return F.gelu(x @ y).relu() + 1

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    model = nn.Sequential(nn.Tanh())

    def run():
        x.grad = None
        out = model(compiled(x, y))
        out.sum().backward()
        return out.detach(), x.grad

    expected = run()
    with collecting(tmp_path, model, level=level) as dump:
        run()
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    if level != "L0":
        assert_same(dump["Compiled.function.0.forward"]["output"][0], function(x, y))
        assert_same(dump["Compiled.function.1.backward"]["output"][0], x.grad)
        assert not any("gelu" in name for name in dump.names)
    assert len(logged("is compiled")) == (level != "L0")
    assert any("anh" in name for name in dump.names)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", ["wrapped", "in place", "inner"])
def test_a_compiled_module_is_one_record_and_keeps_its_result(tmp_path, level, way):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    if way == "wrapped":
        model = torch.compile(model, backend="eager")
    elif way == "in place":
        model.compile(backend="eager")
    else:
        model[1] = torch.compile(model[1], backend="eager")
    x = torch.randn(2, 4)

    def run():
        model.zero_grad()
        out = model(x)
        out.sum().backward()
        return [out.detach(), *(p.grad for p in model.parameters())]

    expected = run()
    with collecting(tmp_path, model, level=level) as dump:
        run()
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert dump.names
    assert all(torch.equal(a, b) for a, b in zip(run(), expected))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("part", ["whole", "inner"])
def test_a_module_compiled_in_place_is_one_record_under_its_name(tmp_path, level, part, logged):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))), torch.randn(2, 4)
    compiled = model if part == "whole" else model[1]
    compiled.compile(backend="aot_eager")
    with collecting(tmp_path, model, level=level) as dump:
        for _ in range(2):
            out = model(x)
            out.sum().backward()
        model[1][0](x)
    assert len(logged("Sequential is compiled")) == 1
    title = "Module.Sequential" if part == "whole" else "Module.1.Sequential"
    forward, backward = f"{title}.forward.1", f"{title}.backward.1"
    if level == "L1":
        forward, backward = "Compiled.Sequential.1.forward", "Compiled.Sequential.1.backward"
    assert_same(dump[forward]["output"][0], out)
    assert_same(dump[backward]["input"][0], torch.ones_like(out))
    assert not any("_call_impl" in name for name in dump.names)
    if level != "L1":
        assert not any("Linear.forward" in name for name in dump.names if name.startswith("Module.1."))
        assert "Module.1.0.ReLU.forward.0" in dump.names  # called by itself
        assert "Module.1.1.Linear.parameters_grad" in dump.names


class PartlyCompiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @torch.compiler.disable
    def run_inner(self, x):
        return self.inner(x)

    def forward(self, x):
        return self.run_inner(x).relu()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_module_that_is_called_compiled_and_alone_is_recorded_both_ways(tmp_path, level, logged):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.ModuleDict({"plain": PartlyCompiled()})
    model["compiled"] = torch.compile(model["plain"], backend="aot_eager")
    x = torch.randn(2, 4)
    with collecting(tmp_path, model, level=level) as dump:
        first, second = model["compiled"](x), model["plain"](2 * x)
        (first + second).sum().backward()
    assert len(logged("PartlyCompiled is compiled")) == 1
    assert_same(dump["Module.compiled.PartlyCompiled.forward.0"]["output"][0], first)
    assert_same(dump["Module.plain.PartlyCompiled.forward.0"]["output"][0], second)
    inner = [name for name in dump.names if "inner.Linear.forward" in name]
    assert inner == ["Module.plain.inner.Linear.forward.0"]  # the region is one record


@pytest.mark.parametrize("wrapped", ["a part", "the model"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_module_that_is_never_compiled_keeps_its_records_and_names(tmp_path, level, wrapped, logged):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    disabled = nn.Sequential(model[0], torch.compiler.disable(model[1]))
    disabled = torch.compiler.disable(model) if wrapped == "the model" else disabled
    x = torch.randn(2, 4)
    names, losses = [], []
    for number, each in enumerate((model, disabled)):
        model.zero_grad()
        with collecting(tmp_path / str(number), each, level=level) as dump:
            loss = each(x).sum()
            loss.backward()
        names.append(dump.names)
        losses.append(loss.item())
    assert names[0] == names[1]
    assert losses[0] == losses[1]
    assert any("1.0.Linear" in name for name in names[0]) or level == "L1"
    assert not logged("is compiled")


@pytest.mark.parametrize("compile", ["closed", "open", "eager"])
def test_a_module_that_is_never_compiled_inside_a_region(tmp_path, compile):
    """Open and eager regions record it under its usual names; a closed region is one record."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Tanh())
    parts = nn.Sequential(plain[0], torch.compiler.disable(plain[1]), plain[2])
    region = torch.compile(parts, backend="aot_eager")
    x = torch.randn(2, 4)
    names = []
    for number, each in enumerate((plain, region)):
        with collecting(tmp_path / str(number), each, level="mix", compile=compile) as dump:
            each(x).sum().backward()
        names.append([name for name in dump.names if name.startswith("Module.1.") and "parameters" not in name])
    assert len(names[0]) == 6
    assert names[1] == ([] if compile == "closed" else names[0])


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_compiled_module_that_did_not_run_is_not_logged(tmp_path, level, logged):
    torch._dynamo.reset()
    parts = {"used": nn.Linear(4, 4), "idle": nn.ReLU()}
    model = nn.ModuleDict({name: torch.compile(part, backend="aot_eager") for name, part in parts.items()})
    with collecting(tmp_path, model, level=level) as dump:
        model["used"](torch.randn(2, 4))
    assert "Module.used.Linear.forward.0" in dump.names
    assert logged("Linear is compiled")
    assert not logged("ReLU is compiled")


def test_code_compiled_for_the_first_time_while_collecting_is_right(tmp_path):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.sin(x) * 2, backend="eager")
    x = torch.randn(4)
    with collecting(tmp_path):
        found = compiled(x)
    assert torch.equal(found, torch.sin(x) * 2)


@pytest.mark.parametrize("level", LEVELS)
def test_copies_made_while_collecting_are_plain_models(tmp_path, level):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model[0].register_forward_hook(_of_the_user)
    x = torch.ones(1, 2)
    file = io.BytesIO()
    with collecting(tmp_path, model, level=level) as dump:
        average = copy.deepcopy(model)
        torch.save(model, file)
        model(x)
        average(x)
    assert sum("Linear.forward" in name for name in dump.names) == (level != "L1")
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for made in (average, loaded):
        assert list(made[0]._forward_hooks.values()) == [_of_the_user]
        assert not made[0]._forward_pre_hooks
        assert torch.equal(made(x), model(x))


def _of_the_user(module, args, output):
    return output


class WithItsOwnState(nn.Linear):
    def __getstate__(self):
        return self.__dict__.copy()


def _parametrized():
    return nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))


COPIED = {
    "parametrized": _parametrized,
    "its own state": lambda: WithItsOwnState(2, 2),
    "graph": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2))),
    "plain": lambda: nn.Linear(2, 2),
}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("token_range", [None, [1, 1]])
@pytest.mark.parametrize("kind", COPIED)
def test_every_kind_of_copy_of_a_module_has_no_hooks(tmp_path, level, token_range, kind):
    model, x = nn.Sequential(COPIED[kind](), nn.Tanh()), torch.ones(1, 2)
    expected, file = model(x), io.BytesIO()
    with collecting(tmp_path, model, level=level, token_range=token_range) as dump:
        made = []
        for _ in range(3):  # before, in and after the range
            model(x)
            made += [copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model).module]
            if kind != "parametrized":  # torch refuses these
                file.seek(0)
                torch.save(model, file)
        for one in made:
            one(x)
    if kind != "parametrized":
        assert b"msprobe" not in file.getvalue()
        file.seek(0)
        made.append(torch.load(file, weights_only=False))
    assert sum("Tanh.forward" in name for name in dump.names) == (3 if token_range is None else 1)
    for one in made:
        assert torch.equal(one(x), expected)
        assert not any(getattr(module, hooks) for module in one.modules() for hooks in HOOKS)
    assert OrderedDict not in copyreg.dispatch_table


def test_an_ordered_dict_of_the_script_is_copied_as_ever(tmp_path):
    mine = OrderedDict((number, True) for number in range(2000))
    mine.note = "kept"
    with collecting(tmp_path, nn.Sequential(nn.Linear(2, 2)), level="L0"):
        made = [copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))]
    for one in made:
        assert (one, one.note) == (mine, "kept")


@pytest.mark.parametrize("level", LEVELS)
def test_tracing_while_collecting_sees_nothing_of_ours(tmp_path, level):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(1, 2)
    with collecting(tmp_path, model, level=level):
        traced = torch.jit.trace(model, x)
        graph = torch.fx.symbolic_trace(model)
        exported = torch.export.export(model, (x,))
    for made in (traced, graph, exported.module()):
        assert torch.equal(made(x), model(x))


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("token_range", [None, [0, 1]])
def test_scripting_while_collecting_sees_nothing_of_ours(tmp_path, level, token_range):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), torch.randn(1, 2)
    model[0].register_forward_hook(_doubling)
    with collecting(tmp_path, model, level=level, token_range=token_range) as dump:
        model(x)
        scripted = torch.jit.script(model)
        model(x)
    assert torch.equal(scripted(x), model(x))
    assert list(model[0]._forward_hooks.values()) == [_doubling]
    assert sum("Linear.forward" in name for name in dump.names) == 2


def _doubling(module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_hugging_face_model(tmp_path, level, family):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
        )
        model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(50, (2, 8))

    def run():
        torch.manual_seed(5)
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    expected = run()
    with collecting(tmp_path, model, level=level) as dump:
        found = run()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    if level != "L1":
        grads = [name for name in dump.names if name.endswith("parameters_grad")]
        assert len(grads) == sum(1 for m in model.modules() if any(True for _ in m.parameters(recurse=False)))
    backwards = sum("backward" in name for name in dump.names)
    assert backwards > 10


def test_generating_collects_only_the_wanted_tokens(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor([[1, 2, 3]])
    expected = model.generate(prompt, **arguments)
    with collecting(tmp_path, model, level="mix", token_range=[1, 2]) as dump:
        found = model.generate(prompt, **arguments)
    assert torch.equal(found, expected)
    calls = [name for name in dump.names if name.startswith("Module.lm_head.Linear.forward")]
    assert calls == ["Module.lm_head.Linear.forward.0", "Module.lm_head.Linear.forward.1"]
