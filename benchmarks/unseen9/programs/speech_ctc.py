"""Speech: a log-mel front end, convolutions, a bidirectional LSTM over packed sequences, CTC loss."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(71)
FFT, HOP, MELS, RATE = 128, 64, 20, 8000


def mel_filters():
    def to_mel(hertz):
        return 2595 * math.log10(1 + hertz / 700)

    points = torch.linspace(to_mel(0), to_mel(RATE / 2), MELS + 2)
    hertz = 700 * (10 ** (points / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, FFT // 2 + 1)
    up = (bins[None] - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    down = (hertz[2:, None] - bins[None]) / (hertz[2:] - hertz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class FrontEnd(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(FFT))
        self.register_buffer("filters", mel_filters())

    def forward(self, wave):
        wave = torch.cat([wave[:, :1], wave[:, 1:] - 0.97 * wave[:, :-1]], dim=1)
        spectrum = torch.stft(wave, FFT, HOP, window=self.window, center=True, return_complex=True)
        power = spectrum.abs().square()
        mel = torch.matmul(self.filters, power)
        features = torch.log(mel + 1e-6)
        return (features - features.mean(2, keepdim=True)) / (features.std(2, keepdim=True) + 1e-5)


class Speech(nn.Module):
    def __init__(self, hidden=24, letters=12):
        super().__init__()
        self.front = FrontEnd()
        self.conv1 = nn.Conv1d(MELS, 32, 5, padding=2)
        self.norm = nn.BatchNorm1d(32)
        self.conv2 = nn.Conv1d(32, 32, 3, stride=2, padding=1, groups=4)
        self.lstm = nn.LSTM(32, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, letters)

    def forward(self, wave, lengths):
        x = self.front(wave)
        x = F.silu(self.norm(self.conv1(x)))
        x = F.glu(torch.cat([self.conv2(x), x[:, :, ::2]], dim=1), dim=1)
        lengths = torch.div(lengths // HOP + 1 + 1, 2, rounding_mode="floor")
        packed = nn.utils.rnn.pack_padded_sequence(x.transpose(1, 2), lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return F.log_softmax(self.head(out), dim=-1), lengths


def batch(step):
    chooser = torch.Generator().manual_seed(step + 400)
    wave = torch.randn(4, 2048, generator=chooser) * 0.1
    lengths = torch.tensor([1600, 2048, 1280, 1920])
    wave = wave * (torch.arange(2048) < lengths[:, None])
    targets = torch.randint(1, 12, (4, 5), generator=chooser)
    return wave, lengths, targets, torch.tensor([3, 5, 2, 4])


model = Speech()
optimizer = torch.optim.Adamax(model.parameters(), lr=4e-3, weight_decay=1e-3)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    wave, lengths, targets, target_lengths = batch(step)
    debugger.start(model)
    log_probs, frames = model(wave, lengths)
    loss = F.ctc_loss(log_probs.transpose(0, 1), targets, frames, target_lengths, blank=0, zero_infinity=True)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
