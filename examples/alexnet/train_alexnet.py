"""The AlexNet example of MindSpore's Graph-mode Dump guide, small enough for a CPU.

    python examples/alexnet/train_alexnet.py --dump DIR [--steps 2]

It trains on fixed random images in graph mode, and MindSpore dumps every operator to DIR. Then
`msprobe graph find DIR "x = self.conv3(x)"` shows the data of that line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def turn_dump_on(directory: Path, steps: int) -> None:
    """Writes a data_dump.json and sets MindSpore's variable. MindSpore reads it once, before the first graph."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "common_dump_settings": {
            "op_debug_mode": 0,
            "dump_mode": 0,
            "path": str(directory.resolve()),
            "net_name": "AlexNet",
            "iteration": f"0-{steps - 1}" if steps > 1 else "0",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": [0],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }
    config = directory / "data_dump.json"
    config.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    os.environ["MINDSPORE_DUMP_CONFIG"] = str(config.resolve())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dump", type=Path, help="directory for the dump; without it the script only trains")
parser.add_argument("--steps", type=int, default=2)
arguments = parser.parse_args()
if arguments.dump:
    turn_dump_on(arguments.dump, arguments.steps)

import mindspore as ms  # noqa: E402 - after the variable is set
import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.common.initializer import TruncatedNormal  # noqa: E402


def conv(in_channels, out_channels, kernel_size, stride=1, padding=0, pad_mode="valid"):
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        pad_mode=pad_mode,
        has_bias=False,
        weight_init=TruncatedNormal(0.02),
    )


def dense(in_channels, out_channels):
    return nn.Dense(in_channels, out_channels, TruncatedNormal(0.02), TruncatedNormal(0.02))


class AlexNet(nn.Cell):
    """AlexNet with an eighth of the channels, for images of 67x67."""

    def __init__(self, num_classes=10, channel=3):
        super().__init__()
        self.conv1 = conv(channel, 12, 11, stride=4)
        self.conv2 = conv(12, 32, 5, pad_mode="same")
        self.conv3 = conv(32, 48, 3, pad_mode="same")
        self.conv4 = conv(48, 48, 3, pad_mode="same")
        self.conv5 = conv(48, 32, 3, pad_mode="same")
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=3, stride=2)
        self.flatten = nn.Flatten()
        self.fc1 = dense(32, 64)
        self.fc2 = dense(64, 64)
        self.fc3 = dense(64, num_classes)

    def construct(self, x):
        x = self.conv1(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.conv2(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.conv3(x)
        x = self.relu(x)
        x = self.conv4(x)
        x = self.relu(x)
        x = self.conv5(x)
        x = self.relu(x)
        x = self.max_pool2d(x)
        x = self.flatten(x)
        x = self.fc1(x)
        x = self.relu(x)
        x = self.fc2(x)
        x = self.relu(x)
        return self.fc3(x)


def main() -> None:
    ms.set_seed(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    network = AlexNet()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
    train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer).set_train()
    generator = np.random.default_rng(1)
    for step in range(arguments.steps):
        images = ms.Tensor(generator.standard_normal((4, 3, 67, 67)), ms.float32)
        labels = ms.Tensor(generator.integers(0, 10, 4), ms.int32)
        print(f"step {step} loss {float(train(images, labels)):.6f}")


if __name__ == "__main__":
    main()
