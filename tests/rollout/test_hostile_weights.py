"""Checkpoints and samples of a stranger: one sentence and exit code 2, no traceback, no hang, no memory for nothing."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from msprobe.cli import main
from msprobe.dump.errors import DumpError
from msprobe.rollout.checkpoints import open_weights
from msprobe.rollout.pickles import read_pickle
from msprobe.rollout.samples import read_samples


def safetensors(path: Path, head: Any, data: bytes = bytes(16)) -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}}


HEADS = {
    "a list": [1],
    "a number": 3,
    "metadata is text": {**entry(), "__metadata__": "x"},
    "metadata is a number": {**entry(), "__metadata__": 7},
    "tied is not JSON": {**entry(), "__metadata__": {"tied": "{"}},
    "tied is a list": {**entry(), "__metadata__": {"tied": "[1]"}},
    "tied to itself": {**entry(), "__metadata__": {"tied": '{"w": "w", "x": "w"}'}},
    "tied is no text": {**entry(), "__metadata__": {"tied": '{"w": [1]}'}},
    "offsets are floats": entry(data_offsets=[0.0, 16.0]),
    "offsets are booleans": entry(data_offsets=[False, 16]),
    "a negative offset": entry(data_offsets=[-16, 0]),
    "infinite shape": b'{"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 16]}}',
    "a shape of floats": entry(shape=[2.5, 2]),
    "deep": b"[" * 200_000,
    "an entry is a list": {"w": [1]},
    "dtype is a list": entry(dtype=["F32"]),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_header_of_any_content_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    bad = safetensors(tmp_path / "bad.safetensors", HEADS[name])
    good = safetensors(tmp_path / "good.safetensors", entry())
    for pair in ((bad, good), (good, bad)):
        assert main(["weights", *map(str, pair)]) in (0, 1, 2)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert len(said.err.splitlines()) <= 1


def test_a_pipe_in_place_of_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(DumpError, match="not a regular file"):
        open_weights(tmp_path)


def test_the_number_of_a_rank_is_read_as_a_number(tmp_path: Path) -> None:
    safetensors(tmp_path / "rank².safetensors", entry())
    assert list(open_weights(tmp_path).tensors) == ["w"]


def test_a_tensor_is_not_larger_than_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of 1 kB whose tensor says that it has 4 TB: a stride of 0 repeats one element."""
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "large.pt")
    torch.save({"w": torch.zeros(1)}, tmp_path / "small.pt")
    with pytest.raises(DumpError, match="larger than its data"):
        open_weights(tmp_path / "large.pt")
    assert main(["weights", str(tmp_path / "large.pt"), str(tmp_path / "small.pt")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def write_dcp(place: Path, **changes: Any) -> Path:
    """A distributed checkpoint of torch, whose metadata is then changed."""
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": torch.arange(6.0)}, checkpoint_id=str(place), no_dist=True)
    metadata = pickle.loads((place / ".metadata").read_bytes())
    (index,) = metadata.storage_data
    info = metadata.storage_data[index]
    metadata.storage_data[index] = type(info)(**{**vars(info), **changes})
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    return place


@pytest.mark.parametrize(
    "changes",
    [{"offset": -5}, {"length": -1}, {"length": 1 << 50}, {"offset": 1 << 60}, {"relative_path": "none.distcp"}],
    ids=str,
)
def test_places_in_a_distributed_checkpoint_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    bad = write_dcp(tmp_path / "bad", **changes)
    good = write_dcp(tmp_path / "good")
    assert main(["weights", str(good), str(good)]) == 0
    assert main(["weights", str(bad), str(good)]) == 2
    assert main(["weights", str(good), str(bad)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_pickle_cannot_overflow_the_stack(tmp_path: Path) -> None:
    """The hash of a tuple in a tuple in … recurses in C, without a limit: Python itself would crash."""
    (tmp_path / "deep").write_bytes(b"\x80\x04}(" + b")" + b"\x85" * 1_000_000 + b"Nu.")
    code = (
        "import sys; from pathlib import Path; from msprobe.rollout.pickles import read_pickle\n"
        "from msprobe.dump.errors import DumpError\n"
        "try: read_pickle(Path(sys.argv[1]))\nexcept DumpError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "deep")], capture_output=True, text=True)
    assert done.returncode == 0, done.returncode
    assert "is damaged" in done.stdout


def test_a_pickle_of_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / ".metadata").open("wb") as file:
        file.truncate(64 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DumpError, match="too large"):
        read_pickle(tmp_path / ".metadata")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


LINES = {
    "a log-prob of 10^400": '{"prompt": [1], "response": [2], "logprobs": [1%s]}' % ("0" * 400),
    "a temperature of 10^400": '{"prompt": [1], "response": [2], "temperature": 1%s}' % ("0" * 400),
    "a log-prob that is NaN": '{"prompt": [1], "response": [2], "logprobs": [NaN]}',
    "a token id of 10^400": '{"prompt": [1%s], "response": [2]}' % ("0" * 400),
    "deep": "[" * 200_000,
    "a length of True": '{"tokens": [1, 2], "response_length": true}',
}


@pytest.mark.parametrize("name", LINES)
def test_a_sample_of_any_content_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "samples.jsonl").write_text(LINES[name] + "\n")
    with pytest.raises(DumpError, match="line 1"):
        read_samples(tmp_path / "samples.jsonl")


ONES = torch.ones(1, 4, dtype=torch.int64)
BATCHES: dict[str, Any] = {
    "lists": {"input_ids": [[1]], "attention_mask": [[1]], "responses": [[1]]},
    "one dimension": {"input_ids": ONES[0], "attention_mask": ONES[0], "responses": ONES[0]},
    "log-probs of one row": {"input_ids": ONES, "attention_mask": ONES, "responses": ONES[:, :2], "logprobs": ONES[0]},
    "log-probs of text": {"input_ids": ONES, "attention_mask": ONES, "responses": ONES[:, :2], "logprobs": "x"},
    "ids of floats": {"input_ids": ONES * 0.5, "attention_mask": ONES, "responses": ONES[:, :2]},
    "larger than its data": {
        "input_ids": torch.ones(1, 1, dtype=torch.int64).expand(1, 1 << 36),
        "attention_mask": torch.ones(1, 1, dtype=torch.int64).expand(1, 1 << 36),
        "responses": ONES,
    },
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_of_any_content_is_one_sentence(tmp_path: Path, name: str) -> None:
    torch.save(BATCHES[name], tmp_path / "batch.pt")
    with pytest.raises(DumpError, match=r"batch\.pt"):
        read_samples(tmp_path / "batch.pt")


def test_a_file_that_torch_refuses_without_a_word_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError

    torch.save({}, tmp_path / "x.pt")
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(DumpError, match="MemoryError"):
        open_weights(tmp_path / "x.pt")
    with pytest.raises(DumpError, match="MemoryError"):
        read_samples(tmp_path / "x.pt")
