"""The examples of docs/mindspore.md, run as written except for the device, with a network, data and a generate loop."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mscollecting import Dump, configured

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mindspore.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)

COMMON = """
import numpy as np
import mindspore
from mindspore import Tensor, nn, ops
from mindspore.dataset import GeneratorDataset
class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Dense(4, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(8, 3)
    def construct(self, x):
        return self.fc2(ops.tanh(self.relu(self.fc1(x))))
drawn = np.random.default_rng(0)
rows = [(drawn.standard_normal((2, 4)).astype(np.float32), np.array([0, 2], np.int32)) for _ in range(2)]
data_loader = [(Tensor(data), Tensor(label)) for data, label in rows]
train_dataset = GeneratorDataset(rows, ["data", "label"], shuffle=False)
loss_fn = nn.CrossEntropyLoss()
"""

VLLM = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

class Small(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Dense(4, 11)
    def construct(self, tokens):
        return self.head(self.embedding(tokens))

class SamplingParams:
    def __init__(self, **settings):
        self.settings = settings

class Attributes:
    def __init__(self, **members):
        self.__dict__.update(members)

class LLM:
    def __init__(self, model):
        self.net = Small()
        runner = Attributes(get_model=lambda: self.net)
        worker = Attributes(worker=Attributes(model_runner=runner))
        self.llm_engine = Attributes(model_executor=Attributes(driver_worker=worker))
    def generate(self, prompts, sampling_params):
        tokens = [len(prompts[0]) % 11]
        for _ in range(6):
            logits = self.net(Tensor([tokens], ms.int32))
            tokens.append(int(logits.asnumpy()[0, -1].argmax()))
        return tokens
"""


def run(path: Path, example: str) -> None:
    script = path / "train.py"
    script.write_text(example.replace('"Ascend"', '"CPU"'))
    done = subprocess.run([sys.executable, str(script)], cwd=path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def steps(path: Path, *numbers: int) -> list[Any]:
    found = [Dump(path / "dump", number) for number in numbers]
    assert not any(dump.errors for dump in found)
    return found


def test_there_are_four_examples():
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_training_loop(tmp_path, level):
    configured(tmp_path, level)
    example = EXAMPLES[0]
    if level == "mix":  # the line that the example has as a comment
        example = example.replace("    debugger.start() ", "    # ").replace(
            "# debugger.start(model)", "debugger.start(model)"
        )
    run(tmp_path, COMMON + example)
    for dump in steps(tmp_path, 0, 1):
        assert "Functional.tanh.0.backward" in dump.names
        assert ("Cell.fc1.Dense.backward.0" in dump.names) == (level == "mix")


@pytest.mark.parametrize("level", ["L1", "L0"])
def test_model_train(tmp_path, level):
    configured(tmp_path, level, "tensor")
    example = EXAMPLES[1].replace("trainer =", "optimizer = nn.SGD(model.trainable_params())\ntrainer =")
    if level == "L0":
        example = example.replace("# debugger.start(model)", "debugger.start(model)")
    run(tmp_path, COMMON + example)
    for dump in steps(tmp_path, 0, 1):
        wanted = "Functional.tanh.0.backward" if level == "L1" else "Cell.fc1.Dense.parameters_grad"
        assert wanted in dump.names
        assert any((dump.directory / "dump_tensor_data").glob("*.npy"))


def test_a_part_of_the_step(tmp_path):
    configured(tmp_path, "L1")
    example = EXAMPLES[2].replace(
        "def forward", "model = Network()\nloss_fn = lambda output: output.sum()\ndef forward"
    )
    run(tmp_path, COMMON + example)
    for dump in steps(tmp_path, 0, 1):
        assert dump.names == ["Functional.tanh.0.forward", "Functional.tanh.0.backward"]


def test_a_range_of_tokens(tmp_path):
    configured(tmp_path, "mix")
    (tmp_path / "vllm.py").write_text(VLLM)
    run(tmp_path, EXAMPLES[3])
    dump = Dump(tmp_path / "dump_path")
    heads = [name for name in dump.names if name.startswith("Cell.head")]
    assert heads == [f"Cell.head.Dense.forward.{number}" for number in range(3)]
    lengths = [dump[name]["input_args"][0]["shape"][1] for name in heads]
    assert lengths == [2, 3, 4]


def test_the_demo_names_the_fault_that_it_planted(tmp_path):
    script = ROOT / "examples" / "mindspore_demo.py"
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    origin = next(line for line in done.stdout.splitlines() if line.startswith("Origin"))
    assert "Primitive.layer_norm.LayerNorm.3.forward in Cell.blocks.1.norm2.LayerNorm" in origin
