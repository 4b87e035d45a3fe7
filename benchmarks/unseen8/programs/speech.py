"""Speech recognition with CTC: log-mel-like features, convolution, a GRU by hand, time masking."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(8)
MELS, LETTERS, HIDDEN, FRAMES = 8, 9, 10, 24


class GRU(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.ih, self.hh = nn.Linear(inputs, 3 * HIDDEN), nn.Linear(HIDDEN, 3 * HIDDEN)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], HIDDEN)
        outputs = []
        for t in range(x.shape[1]):
            a, b = self.ih(x[:, t]), self.hh(h)
            ar, az, an = a.split(HIDDEN, dim=-1)
            br, bz, bn = b.split(HIDDEN, dim=-1)
            r, z = torch.sigmoid(ar + br), torch.sigmoid(az + bz)
            n = torch.tanh(an + r * bn)
            h = (1 - z) * n + z * h
            outputs.append(h)
        return torch.stack(outputs, 1)


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MELS, 12, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(12)
        self.rnn = GRU(12)
        self.head = nn.Linear(HIDDEN, LETTERS)

    def forward(self, features):
        x = F.gelu(self.conv(features.transpose(1, 2)))
        x = self.norm(x.transpose(1, 2))
        return self.head(self.rnn(x)).log_softmax(-1)


model = Recognizer()
decay = [p for name, p in model.named_parameters() if name.endswith("weight")]
no_decay = [p for name, p in model.named_parameters() if not name.endswith("weight")]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.2}, {"params": no_decay, "weight_decay": 0.0}], lr=5e-3
)
power = torch.rand(2, 3, FRAMES, MELS).pow(4) + 1e-6
letters = torch.randint(1, LETTERS, (2, 3, 5))
frames, lengths = torch.tensor([24, 20, 16]), torch.tensor([5, 4, 3])
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    features = torch.log(power[step])
    valid = (torch.arange(FRAMES)[None] < frames[:, None]).unsqueeze(-1)
    count = valid.sum(1, keepdim=True)
    mean = (features * valid).sum(1, keepdim=True) / count
    variance = ((features - mean).square() * valid).sum(1, keepdim=True) / count
    features = (features - mean) / torch.sqrt(variance + 1e-5) * valid
    logp = model(features)
    loss = F.ctc_loss(logp.transpose(0, 1), letters[step], (frames + 1) // 2, lengths, blank=0, reduction="mean")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
