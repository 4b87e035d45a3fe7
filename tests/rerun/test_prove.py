"""`msprobe prove` on a script with faults: the right call is proved, and no other one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from json_schemas import check_schema
from msprobe.cli import main

from .faulty import FAULTS, IMAGE_FAULTS, OTHERS, PAIRS, SCRIPTS

QUICK = ("eps",)


def _run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msprobe", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def _make_place(factory: pytest.TempPathFactory, script: str, *tasks: str) -> Path:
    directory = factory.mktemp("prove")
    (directory / "train.py").write_text(SCRIPTS[script])
    for task in tasks:
        section = {"summary_mode": "md5"}
        settings = {"task": task, "level": "mix", "dump_path": f"./golden_{task}", "step": [0, 1], task: section}
        (directory / "config.json").write_text(json.dumps(settings))
        assert _run(directory, "run", "--config", "config.json", "train.py").returncode == 0
    return directory


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with its golden dumps: one with tensors, one with statistics only."""
    return _make_place(tmp_path_factory, "attention", "tensor", "statistics")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make_place(tmp_path_factory, "image", "tensor")


def _prove(
    place: Path, fault: str, *options: str, script: Sequence[str] = ("train.py",)
) -> tuple[int, dict[str, Any], str]:
    done = _run(place, "prove", "--json", "--golden", "golden_tensor", *options, *script, fault)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.parametrize("fault", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in FAULTS])
def test_a_fault_is_proved_at_its_call(place: Path, fault: str) -> None:
    code, proof, errors = _prove(place, fault)
    assert (code, proof.get("verdict")) == (0, "proved"), (proof, errors)
    (cause,) = proof["causes"]
    assert FAULTS[fault] in cause["name"]
    assert cause["ran"] > 0
    assert cause["share"] == pytest.approx(1, abs=0.01)
    if fault in QUICK:
        assert errors.count("run ") == 2
        assert proof["differing"] > cause["left"] == 0
        check_schema("prove", proof)


@pytest.mark.slow
@pytest.mark.parametrize("fault", IMAGE_FAULTS)
def test_a_fault_of_the_image_model_is_proved_at_its_call(image: Path, fault: str) -> None:
    code, proof, errors = _prove(image, fault)
    assert (code, proof.get("verdict")) == (0, "proved"), (proof, errors)
    (cause,) = proof["causes"]
    assert IMAGE_FAULTS[fault] in cause["name"]


def _expect_two_causes(place: Path, pair: tuple[str, str], names: dict[str, str]) -> None:
    code, proof, errors = _prove(place, ",".join(pair))
    assert (code, proof.get("verdict")) == (0, "proved"), (proof, errors)
    assert len(proof["causes"]) == 2
    assert all(any(names[fault] in one["name"] for one in proof["causes"]) for fault in pair)
    assert sum(one["share"] for one in proof["causes"]) == pytest.approx(1, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS["attention"], ids="+".join)
def test_two_faults_are_two_causes(place: Path, pair: tuple[str, str]) -> None:
    _expect_two_causes(place, pair, FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS["image"], ids="+".join)
def test_two_faults_of_the_image_model_are_two_causes(image: Path, pair: tuple[str, str]) -> None:
    _expect_two_causes(image, pair, IMAGE_FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "call"), [(fault, call) for fault, calls in OTHERS.items() for call in calls])
def test_a_call_that_is_not_the_cause_is_not_proved(place: Path, fault: str, call: str) -> None:
    code, proof, errors = _prove(place, fault, "--call", call)
    assert (code, proof.get("verdict")) == (1, "not the cause"), (proof, errors)


def test_without_tensors_it_says_how_to_collect_them(place: Path) -> None:
    done = _run(place, "prove", "--golden", "golden_statistics", "train.py", "eps")
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert "the golden dump has no tensors of Functional.layer_norm.1.forward" in said
    settings = json.loads(said[said.index("{") :].rstrip("."))
    settings["dump_path"] = "./golden_call"
    (place / "call.json").write_text(json.dumps(settings))
    assert _run(place, "run", "--config", "call.json", "train.py").returncode == 0
    words = ["--golden", "golden_statistics", "--tensors", "golden_call", "train.py", "eps"]
    done = _run(place, "prove", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Proved: with Functional.layer_norm.1.forward replaced" in done.stdout


def test_the_share_of_a_number_that_the_script_prints_at_its_end(place: Path) -> None:
    (place / "score.py").write_text(SCRIPTS["attention"] + "\nprint('score: 0')\nprint('score:', loss.item() * 2)\n")
    good = subprocess.run([sys.executable, "score.py"], cwd=place, capture_output=True, text=True, check=True)
    golden = float(good.stdout.split()[-1])
    words = ["--golden", "golden_tensor", "--number", f"score={golden!r}", "-o", "scored", "score.py", "eps"]
    done = _run(place, "prove", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the run is the same (bit for bit, score {golden:.6g})" in done.stdout
    assert "share   100% of the difference of score (" in done.stdout
    proof = json.loads((place / "scored" / "proof.json").read_text())
    assert (proof["number"], proof["step"], proof["golden"], proof["after"]) == ("score", None, golden, [golden])
    assert proof["target"] != golden
    assert done.stdout.count("score: ") == 4  # the output of both runs passes through
    code, proof, errors = _prove(place, "eps", "--number", f"score={golden!r}", script=("score.py",))
    assert (code, proof["golden"], errors.count("score: ")) == (0, golden, 4)  # not into the JSON


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--golden", "missing", "train.py"], "missing does not exist"),
        (["--golden", "golden_tensor", "missing.py"], "cannot read missing.py"),
        (["--golden", "golden_tensor"], "give a SCRIPT"),
        (["--golden", "golden_tensor", "ends.py"], "recorded nothing"),
        (["--golden", "golden_tensor", "short.py"], "the target has no step 1"),
        (["--golden", "golden_tensor", "seeded.py"], "but the seeds differ: 1 and 0"),
        (["--golden", "golden_tensor", "--most", "0", "train.py"], "--most is 0"),
        (
            ["--golden", "golden_tensor", "--target", "golden_tensor", "--call", "Torch.no.0.forward", "train.py"],
            "Torch.no.0.forward is not a call that both runs make",
        ),
        (["--golden", "golden_tensor", "--number", "score", "train.py"], "--number needs TEXT=VALUE"),
        (["--golden", "golden_tensor", "--number", "score=nan", "train.py"], "--number needs TEXT=VALUE"),
        (["--golden", "golden_tensor", "--number", "score=1", "train.py"], "printed no number after 'score'"),
        (
            ["--golden", "golden_tensor", "--target", "golden_tensor", "--number", "a=1", "train.py"],
            "leave out --target",
        ),
    ],
)
def test_bad_input_gets_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(place)
    (place / "ends.py").write_text("import sys")
    (place / "short.py").write_text(SCRIPTS["attention"].replace("in range(2)", "in range(1)"))
    (place / "seeded.py").write_text(SCRIPTS["attention"].replace("manual_seed(0)", "manual_seed(1)"))
    assert main(["prove", *words]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[msprobe]")]
    assert len(errors) == 1
    assert said in errors[0]


@pytest.mark.slow
def test_nothing_to_prove_and_no_call_to_graft(place: Path) -> None:
    done = _run(place, "prove", "--golden", "golden_tensor", "train.py")
    assert "there is nothing to prove" in done.stderr
    done = _run(place, "prove", "--golden", "golden_tensor", "train.py", "lr")
    assert (done.returncode, "no call that could be grafted" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_loss_of_nan_has_no_share(place: Path) -> None:
    code, proof, errors = _prove(place, "nan", "-o", "nan")
    assert (code, proof.get("verdict"), proof["target"]) == (0, "proved", "NaN"), (proof, errors)
    assert [(one["name"], one["share"]) for one in proof["causes"]] == [("Torch.addcmul.0.forward", None)]
    check_schema("prove", proof)
    assert json.loads((place / "nan" / "proof.json").read_text()) == proof


_COMPILED = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
compiled = len(sys.argv) > 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        self.act = torch.compile(self._act, backend="eager") if compiled else self._act

    def _act(self, x):
        return F.gelu(x, approximate="tanh" if compiled else "none") * 1.5

    def forward(self, x):
        return self.down(self.act(self.up(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(2, 4, 8):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_call_inside_a_compiled_region_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_COMPILED)
    done = _run(tmp_path, "run", "-o", "golden_tensor", "--task", "tensor", "train.py")
    assert done.returncode == 0, done.stderr
    code, proof, errors = _prove(tmp_path, "compiled", "--call", "Functional.gelu.0.forward")
    assert (code, proof) == (2, {}), (proof, errors)
    assert errors.splitlines()[-1].startswith("msprobe prove: ")


_RANKS = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
norm = nn.LayerNorm(32, eps=0.1 if sys.argv[1:] else 1e-5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), norm, nn.GELU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.randn(2, 2, 8, 16)[dist.get_rank()]:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_rank_of_torchrun_gets_its_golden_result(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_RANKS)
    launch = ["--nproc_per_node", "2", "--master_port"]
    start = [sys.executable, "-m", "torch.distributed.run", *launch, "29721", "-m", "msprobe", "run"]
    golden = ["-o", "golden_tensor", "--task", "tensor", "train.py"]
    assert subprocess.run([*start, *golden], cwd=tmp_path, check=False).returncode == 0
    code, proof, errors = _prove(tmp_path, "eps", script=("torchrun", *launch, "29722", "train.py"))
    assert (code, proof.get("verdict")) == (0, "proved"), (proof, errors)
    (cause,) = proof["causes"]
    assert (cause["name"], cause["ran"]) == ("Functional.layer_norm.0.forward", 8)  # 2 steps, 2 ranks, and backward
