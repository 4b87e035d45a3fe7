"""Rollout against trainer: clean pairs have no finding; planted faults are found at the right module, with the cause.

The engine is the tests' own; `make test-slow` does the same with vLLM.
"""

from __future__ import annotations

import pytest
import torch

from msprobe.dump.reader import open_dump
from msprobe.rollout.comparison import answer, compare_by_token, sides_of


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def compare(roll, train):
    def run(change_weights=None, change_runner=None, dtype=torch.float32, trainer_dtype=None, older=None, **options):
        dump, sequences = roll(change_weights, change_runner, dtype, **options)
        golden = train(sequences, trainer_dtype or str(dtype).rpartition(".")[2])
        return compare_by_token(*sides_of(dump, golden), older=older)

    return run


@pytest.mark.parametrize("budget", [64, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_clean_pair_has_no_finding(compare, budget, dtype):
    found = compare(dtype=dtype, budget=budget)
    assert found.verdict == "same", found.sentence
    assert not found.findings
    assert found.sequences == 3
    assert len(found.logprobs.tokens) == 12


def test_a_rollout_in_bfloat16_against_a_trainer_in_float32_has_no_finding(compare):
    found = compare(dtype=torch.bfloat16, trainer_dtype="float32")
    assert found.verdict == "same", found.sentence


def test_the_order_of_the_two_dumps_does_not_matter(roll, train):
    dump, sequences = roll()
    golden = train(sequences)
    assert [one.path for one in sides_of(golden, dump)] == [dump, golden]
    assert sides_of(dump, dump) is None


def _noise(name):
    def change(weights):
        weights[name] += torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(1)) * 0.05

    return change


def _exchange(first, second):
    def change(weights):
        weights[first], weights[second] = weights[second], weights[first]

    return change


def _on(attribute, value):
    """Changes an attribute in every layer: `mix.look.scale`."""

    def change(runner):
        for piece in runner.model.stack:
            module = piece
            *path, last = attribute.split(".")
            for part in path:
                module = getattr(module, part)
            setattr(module, last, value)

    return change


def _theta(runner):
    for piece in runner.model.stack:
        piece.mix.turn.rates = 1.0 / 500.0 ** (torch.arange(0, 8, 2).float() / 8)


def _decode(runner):
    runner.shift_decode = 1


def _head_in_bfloat16(runner):
    matrix = runner.model.speak.matrix.bfloat16()
    runner.model.speak.forward = lambda x: ((x.bfloat16() @ matrix.T).float(), None)


def _shifted(runner):
    before = []
    plain = runner.read_logprob

    def read(logprobs, tokens):
        before.append(plain(logprobs, tokens))
        return before[-2] if len(before) > 1 and before[-2] else before[-1]

    runner.read_logprob = read


def _halved(runner):
    runner.read_logprob = lambda logprobs, tokens: [float((logprobs / 0.5).log_softmax(-1)[t]) for t in tokens]


L1 = "model.layers.1."
FAULTS = {
    "stale o_proj": (_noise(L1 + "self_attn.o_proj.weight"), None, L1 + "self_attn.o_proj", "weight"),
    "stale v in a fused matrix": (_noise(L1 + "self_attn.v_proj.weight"), None, L1 + "self_attn.v_proj", "weight"),
    "swapped gate and up": (
        _exchange(L1 + "mlp.gate_proj.weight", L1 + "mlp.up_proj.weight"),
        None,
        L1 + "mlp.gate_proj",
        "misplaced",
    ),
    "swapped norms": (
        _exchange(L1 + "input_layernorm.weight", "model.layers.2.input_layernorm.weight"),
        None,
        L1 + "input_layernorm",
        "misplaced",
    ),
    "stale embedding": (_noise("model.embed_tokens.weight"), None, "model.embed_tokens", "embedding"),
    "stale head": (_noise("lm_head.weight"), None, "lm_head", "weight"),
    "epsilon": (None, _on("scale_mid.epsilon", 1e-3), "model.layers.0.post_attention_layernorm", "epsilon"),
    "theta": (None, _theta, "model.layers.0.self_attn", "theta"),
    "positions in decode": (None, _decode, "model.layers.0.self_attn", "position"),
    "scale": (None, _on("mix.look.scale", 0.5), "model.layers.0.self_attn", "scale"),
    "softcap": (None, _on("mix.look.cap", 1.0), "model.layers.0.self_attn", "softcap"),
    "window": (None, _on("mix.look.window", 3), "model.layers.0.self_attn", "window"),
    "fp8 cache": (None, _on("mix.look.kept", torch.float8_e4m3fn), "model.layers.0.self_attn", "kv_cache"),
    "head in bfloat16": (None, _head_in_bfloat16, "lm_head", "dtype"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_module_with_its_cause(compare, name):
    change_weights, change_runner, module, cause = FAULTS[name]
    found = compare(change_weights, change_runner)
    assert found.verdict == "differs"
    first = found.findings[0]
    assert (first.node.path, first.cause) == (module, cause), found.sentence
    assert module in found.sentence


def test_two_faults_are_both_found(compare):
    found = compare(_noise(L1 + "mlp.down_proj.weight"), _on("mix.look.scale", 0.5))
    causes = {one.node.path: one.cause for one in found.findings}
    assert causes["model.layers.0.self_attn"] == "scale"
    assert causes[L1 + "mlp.down_proj"] == "weight"


def test_a_fault_in_decode_says_which_rows(compare):
    found = compare(None, _decode)
    assert found.findings[0].rows == "decode rows only"
    assert "off by +1" in found.sentence
    assert "it received" in found.sentence


def test_a_weight_of_an_older_checkpoint_is_called_stale(compare, llama):
    older = {name: value.numpy().copy() for name, value in llama[2].items()}
    older[L1 + "mlp.up_proj.weight"] = older[L1 + "mlp.up_proj.weight"] * 1.2

    def change(weights):
        weights[L1 + "mlp.up_proj.weight"] *= 1.2

    found = compare(change, older=older)
    assert (found.findings[0].node.path, found.findings[0].cause) == (L1 + "mlp.up_proj", "stale")


@pytest.mark.parametrize(("change", "cause"), [(_halved, "temperature"), (_shifted, "shift")])
def test_log_probs_that_do_not_fit_the_logits_have_a_cause(compare, change, cause):
    def both(runner):
        runner.temperature = 0.5
        change(runner)

    found = compare(None, both, prompts=[[5, 9, 2, 33]] if cause == "shift" else [[5, 9, 2, 33], [7, 7, 1]])
    assert not found.findings
    assert found.verdict == "differs"
    assert found.logprob_cause[0] == cause, found.logprob_cause


def test_the_answer_gives_the_figures_in_nats(compare):
    lines = answer(compare(_noise("lm_head.weight")))
    assert any(line.startswith("  log-probs of 12 tokens: mean difference ") and "k3 KL" in line for line in lines)
    assert any(line.startswith("  largest: sequence ") for line in lines)
    assert lines[-1].startswith("  aligned: 3 sequences, ")


def test_a_rollout_of_other_sequences_is_not_called_the_same(roll, train):
    dump, _ = roll()
    found = compare_by_token(open_dump(dump), open_dump(train([[1, 2, 3, 4]])))
    assert (found.verdict, found.exit_code) == ("unknown", 2)
    assert "No sequence of the rollout" in found.sentence


@pytest.mark.parametrize(("weight", "name"), [(L1 + "mlp.down_proj.weight", "layer 1"), ("lm_head.weight", "lm_head")])
def test_the_layer_with_the_fault_has_the_share(roll, train, weight, name):
    dump, sequences = roll(_noise(weight))
    found = compare_by_token(*sides_of(dump, train(sequences)), with_shares=True)
    assert list(found.shares) == ["model.embed_tokens", "layer 0", "layer 1", "layer 2", "model.norm", "lm_head"]
    assert found.shares[name] == pytest.approx(1, abs=0.01)
    assert sum(found.shares.values()) == pytest.approx(1, abs=0.01)
    assert f"share in the log-prob difference: {name} 100%" in "\n".join(answer(found))
