"""Is the answer of `msprobe compare` right? Strict: the place, the sentence, and what can be checked of its claims."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Optional

from cases import SAME_INPUTS, Case, Expect

RIGHT, POOR, WRONG, MISSED = "right", "poor sentence", "wrong", "missed"
SAME, ALARM = "same", "false alarm"
BROKEN = "not compared"
TOP = "the top level"
WEIGHTS_DIFFER = "(weight|parameter|buffer).*differs? before anything ran"

AFTER_BACKWARD = re.compile(
    r"optimi[sz]er|\bAdamW?\b|\bSGD\b|adamw?\.py|sgd\.py|clip_grad|learning rate|in _train\b"
    r"|\b(Adafactor|Lion|Lamb|RMSprop|NAdam|RAdam|LBFGS|Adagrad|GradScaler|AveragedModel)\b|swa_utils|grad_scaler|optimizers\.py",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Judgement:
    """`why` says in words what is wrong with the answer; `said` is the sentence that was printed; `effect` the largest
    relative difference of losses and parameter updates."""

    case: str
    model: str
    kind: str
    verdict: str
    why: str
    said: str = ""
    expected: str = ""
    effect: float = 0.0

    @property
    def good(self) -> bool:
        return self.verdict in (RIGHT, SAME)


@dataclass(frozen=True)
class Effect:
    """What a plant did, apart from what msprobe says of it.

    `size` is the largest relative difference of losses and parameter updates; `changed` has the weights and buffers
    that differ before training, None where that is not known.
    """

    size: float
    changed: Optional[set[str]]


def judge(case: Case, summary: dict[str, Any], rows: list[dict[str, Any]], effect: Effect) -> Judgement:
    origin = summary["origin"]
    said = f"{summary['verdict']}: {origin['sentence'] if origin else 'no origin'}"
    if case.kind == "clean":
        verdict, why = _judge_clean(case, summary)
        expected = "no call is blamed" if case.expect and case.expect.no_blame else "same"
    else:
        assert case.expect is not None
        verdict, why = _judge_fault(case.expect, summary, rows, effect.changed)
        expected = words(case.expect)
    return Judgement(case.id, case.model, case.kind, verdict, why, said, expected, effect.size)


def _judge_clean(case: Case, summary: dict[str, Any]) -> tuple[str, str]:
    if case.expect is not None and case.expect.no_blame:
        if summary["origin"] is not None:
            return ALARM, "a call is blamed for a difference of the whole run"
        return SAME, ""
    if summary["verdict"] == "same" and summary["origin"] is None:
        return SAME, ""
    if summary["verdict"] == "differs" or summary["origin"] is not None:
        return ALARM, "a clean pair was reported"
    return BROKEN, "some rows were not compared: " + ", ".join(summary["not_compared_reasons"])


def _judge_fault(
    expect: Expect, summary: dict[str, Any], rows: list[dict[str, Any]], changed: Optional[set[str]]
) -> tuple[str, str]:
    origin = summary["origin"]
    if origin is None:
        return MISSED, f"no origin is named; the verdict is {summary['verdict']}"
    problem = _place_problem(expect, origin)
    if problem:
        return WRONG, problem
    problem = _sentence_problem(expect, origin) or untrue(origin, rows, changed)
    if problem:
        return POOR, problem
    return RIGHT, ""


def _place_problem(expect: Expect, origin: dict[str, Any]) -> str:
    text = _text(origin)
    if expect.step is not None and (origin["step"] or 0) != expect.step:
        return f"step {origin['step']} is named, not {expect.step}"
    if expect.rank is not None and origin["rank"] != expect.rank:
        return f"rank {origin['rank']} is named, not {expect.rank}"
    if expect.optimizer:
        return "" if AFTER_BACKWARD.search(text) else "nothing after the backward is named"
    if expect.source and re.search(expect.source, _line(origin)):
        return ""
    if expect.source and not (expect.parameter or expect.modules or expect.call):
        return f"the line is {_line(origin)}, not {expect.source}"
    if AFTER_BACKWARD.search(f"{origin['sentence']} {_line(origin)}"):
        return "the optimizer or the clipping is blamed"
    if expect.parameter:
        owner = expect.parameter.rpartition(".")[0]
        near = _module_path(origin) in (owner, owner.rpartition(".")[0])
        return "" if near or expect.parameter in text else f"the parameter {expect.parameter} is not named"
    if expect.direction and origin["direction"] != expect.direction:
        return f"the {origin['direction']} is named, not the {expect.direction}"
    found = _module_path(origin)
    if expect.modules and not any(fnmatchcase(found, name) for name in expect.modules):
        return f"the place is {found or 'the top level'}, not {' or '.join(name or TOP for name in expect.modules)}"
    is_module = bool(expect.modules) and origin["name"].startswith("Module.")
    if expect.call and not is_module and not re.search(expect.call, origin["name"]):
        return f"the call is {origin['name']}, not {expect.call}"
    return ""


def _line(origin: dict[str, Any]) -> str:
    """The line of the target; of a call that only the golden run makes, the line there."""
    return origin["source"] or origin.get("golden_source") or ""


def _sentence_problem(expect: Expect, origin: dict[str, Any]) -> str:
    text = " ".join([origin["sentence"], *origin["evidence"]])
    named_by_line = expect.source and re.search(expect.source, _line(origin))
    if expect.parameter and not named_by_line and not _names(expect.parameter, origin, text):
        return f"the parameter {expect.parameter} is not named"
    for pattern in expect.says:
        if not re.search(pattern, text, re.IGNORECASE):
            return f"the answer does not say {pattern!r}"
    for pattern in expect.never:
        if re.search(pattern, text, re.IGNORECASE):
            return f"the answer says {pattern!r}, which is not so"
    return ""


def _names(parameter: str, origin: dict[str, Any], text: str) -> bool:
    owner, _, name = parameter.rpartition(".")
    here = _module_path(origin) == owner or (bool(owner) and f"{owner}." in text)
    return parameter in text or (here and re.search(rf"\b{re.escape(name)}\b", text) is not None)


def untrue(origin: dict[str, Any], rows: list[dict[str, Any]], changed: Optional[set[str]]) -> str:
    """A claim of the sentence that the rows or the weights of both runs contradict, or nothing."""
    sentence, name = origin["sentence"], origin["name"]
    here = [row for row in rows if (row["step"] or 0) == (origin["step"] or 0) and row["rank"] == origin["rank"]]
    if re.search(SAME_INPUTS, sentence):
        for row in here:
            item = row["target"] or row["golden"] or ""
            if item.startswith((f"{name}.input.", f"{name}.parameters.")) and _differs(row):
                return f"the inputs are said to be the same, but {item} differs or was not compared"
    if re.search(WEIGHTS_DIFFER, sentence) and changed is not None and not changed:
        return "a weight is said to differ before anything ran, but all weights and buffers are the same"
    if re.search(r"\bis missing\b", sentence) and _calls(here, "target", name) >= _calls(here, "golden", name):
        return f"{name} is said to be missing, but the target makes as many such calls"
    if re.search(r"only in the target|is extra\b", sentence) and _calls(here, "golden", name) >= _calls(
        here, "target", name
    ):
        return f"{name} is said to be only in the target, but the golden run makes as many such calls"
    return ""


def _differs(row: dict[str, Any]) -> bool:
    if row["verdict"] == "not_compared":
        return bool(row["target_item"]) and "dtype" in (row["target_item"] or {})
    return row["verdict"] == "error"


def _calls(rows: list[dict[str, Any]], side: str, name: str) -> int:
    """How many calls of this API, or of this module, a run makes."""
    if name.startswith("Module."):
        family, direction = name.rsplit(".", 2)[0], name.rsplit(".", 2)[1]
    else:
        family, direction = ".".join(name.split(".")[:-2]), name.split(".")[-1]
    found = set()
    for row in rows:
        item = row[side] or ""
        if item.startswith(family + ".") and f".{direction}" in item:
            found.add(re.split(r"\.(?:input|output|parameters)\.", item)[0])
    return len(found)


def _text(origin: dict[str, Any]) -> str:
    parts = [origin["sentence"], origin["name"], origin["module"] or "", _line(origin), *origin["evidence"]]
    return " ".join(parts)


def _module_path(origin: dict[str, Any]) -> str:
    """The path of the module that is named, or that holds the call; empty at the top level: in the model itself or
    outside of it, which a dump does not tell apart."""
    name = origin["name"] if origin["name"].startswith("Module.") else origin["module"]
    if not name:
        return ""
    name = re.sub(r"\.(forward|backward|parameters_grad|parameters)\b.*$", "", name)
    return ".".join(name.split(".")[1:-1])


def words(expect: Expect) -> str:
    """The expectation for people."""
    parts = []
    if expect.optimizer:
        parts.append("after the backward")
    if expect.parameter:
        parts.append(f"parameter {expect.parameter}")
    if expect.modules:
        parts.append(" or ".join(m or TOP for m in expect.modules))
    if expect.call:
        parts.append(f"call {expect.call}")
    if expect.direction:
        parts.append(expect.direction)
    if expect.step:
        parts.append(f"step {expect.step}")
    if expect.says:
        parts.append("says " + " and ".join(expect.says))
    return ", ".join(parts)
