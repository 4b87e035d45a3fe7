"""The second stage: judges two details files, one per device, by the standard of each API.

The first stage asks whether a result is close to the golden. This stage asks whether the device under test is as close
as another, trusted device. It uses only the details files and needs no tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from msprobe.check.core import standards
from msprobe.check.core.judge import ERROR, PASS, SKIP, WARNING, Verdict, worst
from msprobe.check.core.results import DETAIL_COLUMNS, read_csv
from msprobe.dump.names import split_slot
from msprobe.messages import Message

COLUMNS = ("API Name", "DEVICE Dtype", "Shape", "Standard", "Status", "Message")
RESULT_COLUMNS = ("API Name", "Forward Test Success", "Backward Test Success", "Message")
# Ratio of the error of the device to that of the other: (column, limit for a pass). Twice the limit is an error.
RATIOS = (
    ("Small Value Error Rate", 2.0),
    ("RMSE", 2.0),
    ("Max Rel Error", 10.0),
    ("Mean Rel Error", 2.0),
)
_NOTHING = 1e-12


@dataclass(frozen=True)
class JudgedOutput:
    name: str
    dtype: str
    shape: str
    standard: str
    verdict: Verdict

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.name, self.dtype, self.shape, self.standard, self.verdict.status, self.verdict.reason)


Row = dict[str, str]


def read_details(path: Path) -> dict[str, Row]:
    return {row[0]: dict(zip(DETAIL_COLUMNS, row)) for row in read_csv(path, DETAIL_COLUMNS)}


def compare(device: dict[str, Row], other: dict[str, Row]) -> list[JudgedOutput]:
    """Judges every output of the device. An output that only the other device has is judged as missing."""
    found = []
    for name, row in device.items():
        dtype = row["DEVICE Dtype"].rpartition(".")[2]
        standard = standards.standard_of(api_of(name), dtype)
        found.append(JudgedOutput(name, dtype, row["Shape"], standard, _judge(standard, dtype, row, other.get(name))))
    for name, row in other.items():
        if name not in device:
            verdict = Verdict(SKIP, Message("second.only"))
            found.append(JudgedOutput(name, row["DEVICE Dtype"].rpartition(".")[2], row["Shape"], "", verdict))
    return found


def summarise(judged: list[JudgedOutput]) -> dict[str, tuple[str, str, str]]:
    """Forward, backward and message of each call."""
    calls: dict[str, dict[str, list[JudgedOutput]]] = {}
    for one in judged:
        call, direction = split_slot(one.name)
        calls.setdefault(call, {"forward": [], "backward": []})[direction].append(one)
    found = {}
    for call, parts in calls.items():
        forward, backward = (worst([one.verdict.status for one in parts[key]]) for key in ("forward", "backward"))
        notes = [
            f"{one.name[len(call) + 1 :]}: {one.verdict.reason}"
            for one in (*parts["forward"], *parts["backward"])
            if one.verdict.reason and one.verdict.status != PASS
        ]
        found[call] = (forward, backward, "; ".join(notes))
    return found


def api_of(name: str) -> str:
    """`Functional.conv2d.0.forward.output.0` -> `conv2d`."""
    call, _ = split_slot(name)
    return call.partition(".")[2].rpartition(".")[0]


def _judge(standard: str, dtype: str, row: Row, other: Optional[Row]) -> Verdict:
    if row["Cosine"] == "":
        return Verdict(SKIP, row["Message"] or Message("second.nothing_measured"))
    if _value(row, "Inf/NaN Error Rate") > 0:
        return Verdict(ERROR, Message("second.special"))
    if standard == standards.BINARY:
        rate = _value(row, "Binary Error Rate")
        return Verdict(PASS) if rate == 0 else Verdict(ERROR, Message("second.binary", share=f"{rate:.2%}"))
    if standard == standards.ABSOLUTE:
        return _absolute(row)
    if standard == standards.THOUSANDTH:
        share = _value(row, "Rel Error < 1/1000")
        return Verdict(PASS) if share >= 0.999 else Verdict(ERROR, Message("second.thousandth", share=f"{share:.2%}"))
    if standard == standards.ULP:
        return _ulp(dtype, row)
    return _benchmark(row, other)


def _absolute(row: Row) -> Verdict:
    relative, absolute = _value(row, "Rel Error Rate"), _value(row, "Abs Error Rate")
    if relative == 0 and absolute == 0:
        return Verdict(PASS)
    return Verdict(ERROR, Message("second.absolute", values=f"{relative:.2%}", small=f"{absolute:.2%}"))


def _ulp(dtype: str, row: Row) -> Verdict:
    mean, share = _value(row, "ULP Mean"), _value(row, "ULP Share")
    if math.isnan(share):
        return Verdict(SKIP, Message("second.no_ulp"))
    if dtype == "float32":
        good = mean < 64 or share < 0.05
        text = Message("second.ulp_mean", mean=f"{mean:.3g}", share=f"{share:.2%}")
    else:
        good = share < 0.001
        text = Message("second.ulp", share=f"{share:.2%}")
    return Verdict(PASS) if good else Verdict(ERROR, text)


def _benchmark(row: Row, other: Optional[Row]) -> Verdict:
    if other is None:
        return Verdict(SKIP, Message("second.absent"))
    if other["DEVICE Dtype"] != row["DEVICE Dtype"] or other["Shape"] != row["Shape"]:
        return Verdict(SKIP, Message("second.other_shape"))
    status = PASS
    notes: list[Message] = []
    for column, limit in RATIOS:
        own, theirs = _value(row, column), _value(other, column)
        if math.isnan(own) or math.isnan(theirs):
            return Verdict(SKIP, Message("second.no_column", column=column))
        ratio = 1.0 if own <= _NOTHING else math.inf if theirs <= _NOTHING else own / theirs
        if ratio > limit:
            status = worst([status, ERROR if ratio > 2 * limit else WARNING])
            notes.append(Message("second.ratio", column=column, ratio=f"{ratio:.3g}", limit=f"{limit:g}"))
    return Verdict(status, Message("second.ratios", parts=notes) if notes else "")


def _value(row: Row, column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        return math.nan
