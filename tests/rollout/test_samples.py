"""Samples of slime, verl and scripts; and `msprobe rollout check`, which says whether their log-probs fit a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from msprobe.cli import main
from msprobe.dump.errors import DumpError
from msprobe.rollout.check import check_samples
from msprobe.rollout.samples import Sample, read_samples

VOCABULARY = 40


def _logits(tokens):
    """A model of the tests: the logits depend on the token and its place."""
    rows = [np.random.default_rng([token, place]).normal(size=VOCABULARY) * 2 for place, token in enumerate(tokens)]
    return np.stack(rows)


def _samples(change=None, temperature=1.0, top_p=None, seed=0, count=6):
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt, response = draw.integers(0, VOCABULARY, 5).tolist(), draw.integers(0, VOCABULARY, 12).tolist()
        logits = _logits(prompt + response)[4:16] / temperature
        values = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        if top_p is not None:
            response = values.argmax(1).tolist()
            logits = _logits(prompt + response)[4:16] / temperature
            values = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            response = [response[0], *response[1:]]
        logprobs = values[np.arange(12), response]
        if change is not None:
            logprobs = change(logprobs)
        made.append(Sample(prompt, response, list(map(float, logprobs)), temperature, top_p))
    return made


def _check(samples):
    return check_samples(samples, _logits, VOCABULARY)


@pytest.mark.fast
def test_log_probs_of_the_model_fit():
    found = _check(_samples(lambda values: values + 0.003))
    assert (found.verdict, found.cause, found.exit_code) == ("fits", "rounding", 0)
    assert found.differences.figures()["mean"] == pytest.approx(0.003)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (lambda v: np.concatenate([[-1.0], v[:-1]]), "shift", "too late"),
        (lambda v: np.concatenate([v[1:], [-1.0]]), "shift", "too early"),
        (lambda v: np.where(np.arange(12) > 6, v - 1, v), "position", "grows with the position"),
        (lambda v: v + np.random.default_rng(1).normal(size=12), "model", "everywhere"),
    ],
)
def test_what_is_wrong_is_named(change, cause, words):
    found = _check(_samples(change))
    assert (found.verdict, found.cause) == ("differs", cause)
    assert words in found.sentence


@pytest.mark.fast
def test_a_temperature_is_found():
    found = _check(_samples(temperature=0.7))
    assert found.cause == "temperature"
    assert "temperature 0.7" in found.sentence


@pytest.mark.fast
def test_truncation_by_top_p_is_found():
    from msprobe.rollout.logprobs import log_softmax, truncate

    made = []
    for number in range(4):
        prompt = [number, 1, 2]
        response: list[int] = []
        logprobs = []
        for _ in range(8):
            values = truncate(log_softmax(_logits(prompt + response)[-1]), 0.6)
            response.append(int(np.argmax(values)))
            logprobs.append(float(values[response[-1]]))
        made.append(Sample(prompt, response, logprobs, 1.0, 0.6))
    found = _check(made)
    assert found.cause == "top_p", found.sentence
    assert "top_p 0.6" in found.sentence


@pytest.mark.fast
def test_samples_without_log_probs_and_other_tokenizers_get_one_sentence():
    with pytest.raises(DumpError, match="no sample has log-probs"):
        _check([Sample([1], [2])])
    with pytest.raises(DumpError, match="a different tokenizer"):
        _check([Sample([1], [99], [-1.0])])


@pytest.mark.fast
def test_files_of_slime_and_verl_are_read_as_they_are(tmp_path):
    slime = {"tokens": [1, 2, 3, 4], "response_length": 2, "rollout_log_probs": [-0.5, -0.25], "reward": 1.0}
    torch.save({"rollout_id": 3, "samples": [slime]}, tmp_path / "rollout_3.pt")
    wanted = Sample([1, 2], [3, 4], [-0.5, -0.25])
    assert read_samples(tmp_path / "rollout_3.pt") == [wanted]

    batch = {
        "input_ids": torch.tensor([[0, 1, 2, 3, 4, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 0]]),
        "responses": torch.tensor([[3, 4, 0]]),
        "rollout_log_probs": torch.tensor([[-0.5, -0.25, 0.0]]),
    }
    torch.save({"batch": batch, "meta_info": {"temperature": 0.5}}, tmp_path / "verl.pt")
    assert read_samples(tmp_path / "verl.pt") == [Sample([1, 2], [3, 4], [-0.5, -0.25], 0.5)]

    line = {"prompt_token_ids": [1, 2], "response_ids": [3, 4], "logprobs": [-0.5, -0.25]}
    (tmp_path / "s.jsonl").write_text(json.dumps(line) + "\n\n" + json.dumps(slime) + "\n")
    assert read_samples(tmp_path / "s.jsonl") == [wanted, wanted]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": [1', "line 1 is not JSON"),
        ("[1]", "not an object"),
        ('{"input": "text", "output": "text"}', "text but no token ids"),
        ('{"prompt": [1]}', "has none of response_token_ids"),
        ('{"prompt": [1], "response": [-2]}', "not a whole number"),
        ('{"prompt": [1], "response": [2], "logprobs": [-1, -2]}', "2 log-probs for 1 response tokens"),
        ('{"prompt": [1], "response": [2], "logprobs": ["x"]}', "not a number"),
        ('{"tokens": [1], "response_length": 4}', "response_length is 4"),
        ("", "has no samples"),
    ],
)
def test_broken_lines_get_one_clear_sentence(tmp_path, line, words):
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(DumpError, match=words) as caught:
        read_samples(tmp_path / "s.jsonl")
    assert "\n" not in str(caught.value)


@pytest.mark.fast
def test_a_pickle_is_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return (print, ("harm",))

    torch.save({"samples": [Harm()]}, tmp_path / "s.pt")
    with pytest.raises(DumpError, match="cannot be read as data only"):
        read_samples(tmp_path / "s.pt")


def test_the_commands_check_and_collect(llama, roll, tmp_path, capsys):
    dump, sequences = roll()
    from msprobe.dump.reader import open_dump

    known = {}
    for rank in open_dump(dump).ranks:
        for one in rank.tokens.logprobs:
            known.setdefault(int(rank.tokens.sequences[one.sequence].name[0]), {})[one.position] = one.logprob
    lines = []
    for number, sequence in enumerate(sequences):
        values = [known[number][place] for place in sorted(known[number])]
        cut = len(sequence) - len(values)
        lines.append(json.dumps({"prompt": sequence[:cut], "response": sequence[cut:], "logprobs": values}))
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join(lines))
    assert main(["rollout", "check", str(samples), "--model", str(llama[0])]) == 0
    assert "The log-probs fit the model" in capsys.readouterr().out
    assert main(["rollout", "check", str(samples), "--model", str(llama[0]), "--json", "--limit", "2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["logprobs"]["tokens"], answer["message"]["id"]) == (8, "rollout.fits")
    assert main(["rollout", "trainer", str(samples), "--model", str(llama[0]), "-o", str(tmp_path / "t")]) == 0
    capsys.readouterr()
    assert main(["compare", str(dump), str(tmp_path / "t")]) == 0
    assert "The rollout computes what the trainer computes" in capsys.readouterr().out
    assert main(["compare", str(dump), str(tmp_path / "t"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "same"
    assert main(["compare", str(dump), str(tmp_path / "t"), "--csv", str(tmp_path / "x.csv")]) == 2
    assert "use --json" in capsys.readouterr().err


def test_a_directory_without_a_checkpoint_is_named(tmp_path, capsys):
    (tmp_path / "s.jsonl").write_text('{"prompt": [1], "response": [2]}')
    assert main(["rollout", "check", str(tmp_path / "s.jsonl"), "--model", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
