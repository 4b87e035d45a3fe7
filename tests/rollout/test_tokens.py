"""tokens.json: the coordinates of rows in a trainer and in an engine, and damaged files."""

from __future__ import annotations

import json

import pytest
import torch

from msprobe.dump.errors import DumpError
from msprobe.dump.reader import open_dump
from msprobe.dump.tokens import Forward, SequenceTokens, TokenLogprob, Tokens, read_tokens
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.rollout.trainer_tokens import rows_of_batch

IDS = torch.tensor([[7, 8, 9, 0], [4, 5, 6, 3]])


def _rows(**arguments):
    forward, sequences = rows_of_batch(arguments)
    return forward.sequence, forward.position, [one.tokens for one in sequences]


@pytest.mark.fast
def test_right_padding_has_no_sequence():
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    sequence, position, tokens = _rows(input_ids=IDS, attention_mask=mask)
    assert sequence == [0, 0, 0, -1, 1, 1, 1, 1]
    assert position == [0, 1, 2, 0, 0, 1, 2, 3]
    assert tokens == [[7, 8, 9], [4, 5, 6, 3]]


@pytest.mark.fast
def test_left_padding_counts_from_the_first_token():
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    sequence, position, tokens = _rows(input_ids=IDS, attention_mask=mask)
    assert sequence == [-1, 0, 0, 0, 1, 1, 1, 1]
    assert position == [0, 0, 1, 2, 0, 1, 2, 3]
    assert tokens[0] == [8, 9, 0]


@pytest.mark.fast
@pytest.mark.parametrize(
    "packing",
    [
        {"cu_seqlens": torch.tensor([0, 2, 5], dtype=torch.int32)},
        {"cu_seq_lens_q": torch.tensor([0, 2, 5], dtype=torch.int32)},
        {"position_ids": torch.tensor([[0, 1, 0, 1, 2]])},
    ],
)
def test_packed_sequences_are_split(packing):
    sequence, position, tokens = _rows(input_ids=torch.tensor([[1, 2, 3, 4, 5]]), **packing)
    assert sequence == [0, 0, 1, 1, 1]
    assert position == [0, 1, 0, 1, 2]
    assert tokens == [[1, 2], [3, 4, 5]]


@pytest.mark.fast
def test_a_shard_of_a_sequence_keeps_its_positions():
    forward, _ = rows_of_batch({"input_ids": torch.tensor([[5, 6]]), "position_ids": torch.tensor([[8, 9]])})
    assert forward.position == [8, 9]
    assert forward.given == [8, 9]


@pytest.mark.fast
def test_a_batch_without_token_ids_has_no_rows():
    assert rows_of_batch({"inputs_embeds": torch.ones(1, 2, 3)}) is None
    assert rows_of_batch({"input_ids": torch.ones(1, 2)}) is None


@pytest.mark.fast
def test_what_is_written_is_read_again(tmp_path):
    forward = Forward([3], [0, 0, -1], [0, 1, 0], [5, 6, 0], [0, 1, 0], [1])
    written = Tokens("rollout", [SequenceTokens("a", [5, 6], {"top_p": 0.5})], [forward], [[0, 0, 3]])
    written.logprobs.append(TokenLogprob(0, 1, 6, -1.5))
    written.write(tmp_path)
    assert read_tokens(tmp_path) == written
    assert oct((tmp_path / "tokens.json").stat().st_mode & 0o777) == "0o640"


@pytest.mark.fast
@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"side": "elsewhere"},
        {"sequences": [{"name": "a"}]},
        {"forwards": [{"shape": [1], "sequence": [5], "position": [0], "token": [1], "given": None, "again": []}]},
        {"forwards": [{"shape": [1], "sequence": [0], "position": [], "token": [1], "given": None, "again": []}]},
        {"absent": [[0, 1]]},
        {"logprobs": [{"sequence": 9, "position": 0, "token": 0, "logprob": 0, "kind": "prompt"}]},
    ],
)
def test_a_damaged_file_is_named(tmp_path, change):
    good = {"format": 1, "side": "rollout", "sequences": [{"name": "a", "tokens": [1], "sampling": {}}]}
    good |= {"forwards": [], "absent": [], "logprobs": [], "engine": {}}
    (tmp_path / "tokens.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(DumpError, match=r"tokens\.json is damaged"):
        read_tokens(tmp_path)


def test_a_model_without_token_ids_writes_no_file(tmp_path):
    debugger = PrecisionDebugger(dump_path=str(tmp_path / "d"), task="statistics", level="L0")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    debugger.start(model=model)
    model(torch.ones(1, 2))
    debugger.stop()
    debugger.step()
    assert not (tmp_path / "d/step0/rank/tokens.json").exists()
    assert (tmp_path / "d/step0/rank/dump.json").exists()
    assert not model._forward_pre_hooks


def test_an_engine_records_each_row_once_with_its_token(roll):
    dump, sequences = roll(budget=6)
    seen = {}
    for rank in open_dump(dump).ranks:
        tokens = rank.tokens
        for forward in tokens.forwards:
            assert forward.given == forward.position
            for number, position, token in zip(forward.sequence, forward.position, forward.token):
                place = (tokens.sequences[number].name, position)
                assert place not in seen
                seen[place] = token
    wanted = {
        (f"{number}-x", position): token
        for number, sequence in enumerate(sequences)
        for position, token in enumerate(sequence[:-1])
    }
    assert seen == wanted


def test_log_probs_and_sampling_are_recorded(roll):
    dump, sequences = roll(temperature=0.5)
    found = [one for rank in open_dump(dump).ranks for one in rank.tokens.logprobs]
    assert len(found) == 4 * len(sequences)
    assert all(one.logprob < 0 and one.kind == "sampled" for one in found)
    assert open_dump(dump).ranks[0].tokens.sequences[0].sampling == {"temperature": 0.5, "top_p": 1.0}
    assert open_dump(dump).ranks[0].tokens.engine["logprobs_mode"] == "raw_logprobs"


def test_the_engine_gives_the_same_tokens_with_the_plugin(roll, llama):
    from small_engine import PROMPTS, Runner

    _, sequences = roll(task="statistics")
    with torch.no_grad():
        assert Runner(llama[1], llama[2]).run(PROMPTS) == sequences


@pytest.mark.fast
def test_the_plugin_is_idle_without_its_variables(monkeypatch):
    import sys

    from msprobe.pytorch.rollout.vllm_plugin import register

    for name in ("MSPROBE_ROLLOUT", "MSPROBE_ROLLOUT_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    register()
    assert not [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]
