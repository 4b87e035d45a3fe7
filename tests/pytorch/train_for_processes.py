"""A real training script for the tests that need a process of its own: `python train_for_processes.py KIND CONFIG`.

Prints the losses as hexadecimal floats, one a line: equal text is equal to the last bit.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        x = torch.full((4,), float(index))
        return torch.tanh(x) + torch.relu(x) * 0.01


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch), torch.ones(len(batch), 4))
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)


def plain(debugger, steps=4, killed_in=None):
    model, optimizer = build()
    for step in range(steps):
        if debugger is not None:
            debugger.start(model)
        train_step(model, optimizer, torch.full((2, 4), float(step)))
        if step == killed_in:
            for _ in range(400):
                torch.relu(torch.ones(3))
            debugger.stop()  # flushes
            debugger.start(model)
            for _ in range(50):
                torch.tanh(torch.ones(3))
            os.kill(os.getpid(), signal.SIGKILL)
        if debugger is not None:
            debugger.stop()
            debugger.step()


def workers(debugger):
    """Workers are forked while a step is collected."""
    model, optimizer = build()
    if debugger is not None:
        debugger.start(model)
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        train_step(model, optimizer, batch)
    pid = os.fork()
    if not pid:
        for _ in range(1000):
            torch.relu(torch.ones(2))
        if debugger is not None:
            assert debugger._lifecycle._probe.recorder.closed
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    if debugger is not None:
        debugger.stop()
        debugger.step()


def by_loader(debugger):
    """enable_dataloader: nothing is called; the run ends by itself."""
    model, optimizer = build()
    for _ in range(3):
        for batch in torch.utils.data.DataLoader(Data(), batch_size=4):
            train_step(model, optimizer, batch)
    print("never reached when the last wanted step is over")


def limited(debugger):
    """A disk that is full after 60 kB: no file may grow beyond that."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model, optimizer = build()
    for step in range(3):
        if debugger is not None:
            debugger.start(model)
        for _ in range(200):
            torch.relu(torch.ones(3))
        train_step(model, optimizer, torch.full((2, 4), float(step)))
        if debugger is not None:
            debugger.stop()
            debugger.step()


def blocked(debugger):
    Path(sys.argv[3]).write_text("where the dump should be made")
    plain(debugger)


KINDS = {
    "plain": plain,
    "blocked": blocked,
    "killed": lambda debugger: plain(debugger, killed_in=1),
    "workers": workers,
    "loader": by_loader,
    "limited": limited,
}

if __name__ == "__main__":
    config = sys.argv[2] if len(sys.argv) > 2 else None
    KINDS[sys.argv[1]](PrecisionDebugger(config) if config else None)
