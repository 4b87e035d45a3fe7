"""A frozen convolutional teacher helps a small recurrent student to classify signals: soft targets and one hint."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger

NUM_CLASSES = 8
TEMPERATURE = 3.0
SOFT_SHARE = 0.7
HINT_SHARE = 0.2


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(5, 24, 3, padding=1)
        self.bn1 = nn.BatchNorm1d(24)
        self.conv2 = nn.Conv1d(24, 24, 3, padding=2, dilation=2)
        self.bn2 = nn.BatchNorm1d(24)
        self.dropout = nn.Dropout(0.2)
        self.classify = nn.Linear(24, NUM_CLASSES)

    def forward(self, signals, valid):
        h = F.leaky_relu(self.bn1(self.conv1(signals.transpose(1, 2))), 0.1)
        h = F.leaky_relu(self.bn2(self.conv2(h)), 0.1)
        share = valid.to(h.dtype).unsqueeze(1)
        features = (h * share).sum(-1) / share.sum(-1)
        return self.classify(self.dropout(features)), features


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 12, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(24, eps=1e-6)
        self.classify = nn.Linear(24, NUM_CLASSES)
        self.to_teacher = nn.Linear(24, 24, bias=False)

    def forward(self, signals, valid):
        h, _ = self.rnn(signals * valid.unsqueeze(-1))
        h = h.masked_fill(~valid.unsqueeze(-1), float("-inf")).amax(dim=1)
        h = self.norm(h)
        return self.classify(h), self.to_teacher(h)


def soften(logits):
    return F.log_softmax(logits / TEMPERATURE, dim=-1)


def distill(student_logits, teacher_logits):
    wanted = F.softmax(teacher_logits / TEMPERATURE, dim=-1)
    return F.kl_div(soften(student_logits), wanted, reduction="batchmean") * TEMPERATURE**2


def signals_of(step, rows=6, length=14):
    rng = torch.Generator().manual_seed(1000 + step)
    signals = torch.randn(rows, length, 5, generator=rng, dtype=torch.get_default_dtype())
    lengths = torch.randint(7, length + 1, (rows,), generator=rng)
    labels = torch.randint(0, NUM_CLASSES, (rows,), generator=rng)
    return signals, torch.arange(length) < lengths[:, None], labels


torch.manual_seed(2)
teacher = Teacher()
with torch.no_grad():
    for norm in (teacher.bn1, teacher.bn2):
        norm.running_mean.normal_(0.0, 0.3)
        norm.running_var.uniform_(0.3, 1.5)
        norm.weight.uniform_(0.5, 2.0)
    teacher.classify.weight.mul_(6.0)
teacher.eval()
teacher.requires_grad_(False)
student = Student()
models = [student, teacher]
optimizer = torch.optim.RMSprop(student.parameters(), lr=2e-3, alpha=0.95, eps=1e-6, momentum=0.5)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1, 2])
losses = []
for step in range(3):
    debugger.start([student, teacher])
    signals, valid, labels = signals_of(step)
    with torch.no_grad():
        teacher_logits, teacher_features = teacher(signals, valid)
    student_logits, student_features = student(signals, valid)
    hard = F.cross_entropy(student_logits, labels)
    soft = distill(student_logits, teacher_logits)
    hint = 1 - F.cosine_similarity(student_features, teacher_features, dim=-1).mean()
    loss = (1 - SOFT_SHARE) * hard + SOFT_SHARE * soft + HINT_SHARE * hint
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(student.parameters(), 0.05)
    optimizer.step()
    losses.append(loss.item())
    debugger.stop()
    debugger.step()
