"""The lines of "In your trainer" in README.md run in real trainers, as written there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.dump.reader import open_dump
from msprobe.pytorch import MsprobeCallback, PrecisionDebugger

README = Path(__file__).resolve().parents[2] / "README.md"


def lines() -> dict[str, list[str]]:
    """The code of each row of the table, by trainer."""
    section = README.read_text(encoding="utf-8").split("## In your trainer")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")][1:]
    return {name: re.findall(r"`([^`]+)`", code) for name, code in rows}


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    yield {"dump_path": str(tmp_path / "golden"), "level": "mix", "step": [0, 1]}
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current._lifecycle.close()
        PrecisionDebugger._current = None


def names(path: Path, step: int = 1) -> list[str]:
    dump = open_dump(path)
    assert dump.steps == [0, 1]
    return list(dump.ranks[step].records)


def small_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def test_every_trainer_has_a_line() -> None:
    assert [name.split()[0] for name in lines()] == ["Hugging", "Lightning", "accelerate", "peft", "your", "MindSpore"]


def test_hugging_face(tmp_path: Path, settings: dict[str, Any]) -> None:
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (8, 8))]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, max_steps=3, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=small_llama(), args=arguments, train_dataset=data)
    eval(
        lines()["Hugging Face Trainer, TRL"][0],
        {"MsprobeCallback": MsprobeCallback, "trainer": trainer, "settings": settings},
    )
    trainer.train()
    assert "Module.model.layers.0.mlp.LlamaMLP.forward.0" in names(tmp_path / "golden")


def test_lightning(tmp_path: Path, settings: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(tmp_path),
    )  # fmt: skip
    eval(lines()["Lightning"][0], {"MsprobeCallback": MsprobeCallback, "trainer": trainer, "settings": settings})
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=4))
    assert "Module.layer.Linear.forward.0" in names(tmp_path / "golden")


ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
for _ in range(3):
    accelerator.backward(model(torch.randn(2, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""


def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATE)
    command, *words = shlex.split(lines()["accelerate"][0])
    assert command == "accelerate"
    place = words.index("launch") + 1
    module = [sys.executable, "-m", "accelerate.commands.accelerate_cli"]
    options = [
        "--num_processes",
        "1",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--cpu",
        "--dynamo_backend",
        "no",
    ]
    done = subprocess.run(
        [*module, *words[:place], *options, *words[place:]], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("Functional.linear") for name in names(tmp_path / "golden"))


def train(debugger: PrecisionDebugger, model: Any, begin: str, end: str, **known: Any) -> None:
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    for _ in range(2):
        ids = torch.randint(64, (2, 8))
        exec(begin, {"debugger": debugger, **known})
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        exec(end, {"debugger": debugger})


def test_peft(tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "embed_tokens"])
    model = peft.get_peft_model(small_llama(), config)
    train(
        PrecisionDebugger(**settings), model, lines()["peft"][0], "debugger.stop(); debugger.step()", peft_model=model
    )
    found = names(tmp_path / "golden")
    assert "Module.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.Linear.forward.0" in found
    assert "ParameterDict" not in caplog.text
    assert "enforce_eager" not in caplog.text


def test_a_loop_like_that_of_verl(tmp_path: Path, settings: dict[str, Any]) -> None:
    begin, end, _ = lines()["your own loop, verl"]

    class Worker:
        actor_module = small_llama()

    train(PrecisionDebugger(**settings), Worker.actor_module, begin, end, self=Worker)
    assert "Module.model.layers.0.mlp.LlamaMLP.forward.0" in names(tmp_path / "golden")


def test_mindspore(tmp_path: Path, settings: dict[str, Any]) -> None:
    (code,) = lines()["MindSpore Model"]
    script = f"""
import mindspore, numpy
from mindspore import nn
from mindspore.train import Model
from msprobe.mindspore import MsprobeCallback
mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
settings = {settings!r}
network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
columns = (numpy.ones((12, 8), "float32"), numpy.ones((12, 1), "float32"))
data = mindspore.dataset.NumpySlicesDataset(columns, ["x", "y"], shuffle=False).batch(4)
model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params()))
{code}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert any(name.startswith("Cell.") and "Dense" in name for name in names(tmp_path / "golden"))
