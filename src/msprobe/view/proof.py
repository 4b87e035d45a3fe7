"""The directory that `msprobe prove -o` made: the proof on top, and below it the target against its last run.

In the last run the blamed calls have the golden results, so what differs between the two is what the grafts changed.
The golden dump is not opened: proof.json is not trusted, and msprobe opens only what the command line names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.items import read_number
from msprobe.dump.untrusted.regular_files import is_inside, read_regular
from msprobe.messages import Message, read_message
from msprobe.view.call_details import LONGEST, shown
from msprobe.view.comparing import load_comparison
from msprobe.view.material import Answer, Material, Progress
from msprobe.view.single_dump import load_dump

FILE = "proof.json"
MOST_BYTES = 16 << 20
MOST_CAUSES = 100
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""How strict JSON has these numbers."""
_VERDICTS = {"proved": "proved", "not proved": "differs", "not the cause": "differs"}


def is_proof(path: Path) -> bool:
    return (path / FILE).is_file()


def load_proof(path: Path, progress: Optional[Progress] = None) -> Material:
    proof = _read(path)
    found = [run for run in path.glob("run*/dump") if is_inside(run, path)]
    runs = sorted(found, key=lambda run: (len(run.parent.name), run.parent.name))
    if not runs:
        raise DumpError(f"{path} has a {FILE}, but no dumps (run1/dump, …); give the directory that prove -o made.")
    has_both = len(runs) > 1
    material = load_comparison(runs[0], runs[-1], {}, progress) if has_both else load_dump(runs[-1])
    answer = material.answer
    facts = [("printed" if proof["number"] else "loss", text) for text in [_loss(proof)] if text]
    facts += [("now", proof["rest"])] if proof["rest"] and proof["verdict"] != "proved" else []
    notes = [*([Message("proof.rows")] if has_both else []), *answer.notes]
    material.answer = Answer(
        _VERDICTS[proof["verdict"]], _sentence(proof), facts, notes,
        answer.unit, answer.row, answer.stacks, answer.ranks,
    )  # fmt: skip
    material.proof = proof
    return material


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path / FILE, path, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(f"{path / FILE} cannot be read: {str(error).splitlines()[0][:200]}.") from None
    causes = value.get("causes") if isinstance(value, dict) else None
    if not isinstance(causes, list) or value.get("verdict") not in list(_VERDICTS):
        raise DumpError(f"{path / FILE} is not a proof of `msprobe prove`.")
    numbers = {key: _number(value.get(key)) for key in ("target", "golden")}
    counts = {key: _whole(value.get(key)) for key in ("step", "differing")}
    after = value.get("after")
    return {
        **numbers,
        **counts,
        "verdict": value["verdict"],
        "exact": value.get("exact") is True,
        "rest": _said(value, "rest"),
        "number": _text(value.get("number")),
        "after": [_number(one) for one in after[:MOST_CAUSES]] if isinstance(after, list) else [],
        "causes": [_cause(one) for one in causes[:MOST_CAUSES] if isinstance(one, dict)],
    }


def _cause(one: dict[str, Any]) -> dict[str, Any]:
    texts = {key: _text(one.get(key)) for key in ("name", "module", "source")}
    texts["sentence"] = _said(one, "sentence")
    counts = {key: _whole(one.get(key)) for key in ("ran", "changed", "calls", "left")}
    return {**texts, **counts, "share": _number(one.get("share"))}


def _text(value: Any) -> str:
    return str(shown(value)) if isinstance(value, str) else ""


def _said(record: dict[str, Any], key: str) -> str:
    """A sentence: the message beside it, if it says the same; else its text."""
    message = read_message(record.get("message"), LONGEST)
    return message if message is not None and message == record.get(key) else _text(record.get(key))


def _number(value: Any) -> Optional[float]:
    return float(value) if value in _NOT_FINITE else read_number(value)


def _whole(value: Any) -> Optional[int]:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _sentence(proof: dict[str, Any]) -> Message:
    id = "proof.same_bits" if proof["exact"] else "proof.same"
    if proof["verdict"] != "proved":
        id = "proof.not_cause" if proof["verdict"] == "not the cause" else "proof.not_proved"
    return Message(id, calls=[_title(one) for one in proof["causes"]])


def _title(cause: dict[str, Any]) -> str:
    more = (cause["calls"] or 1) - 1
    return Message("proof.more_of_line", call=str(cause["name"]), more=more) if more > 0 else str(cause["name"])


def _loss(proof: dict[str, Any]) -> str:
    if proof["target"] is None or proof["golden"] is None or not proof["after"]:
        return ""
    losses = [f"{proof['target']:.6g}", *(f"{one:.6g}" for one in proof["after"] if one is not None)]
    golden = f"{proof['golden']:.6g}"
    if proof["number"]:
        return Message("proof.number", number=proof["number"], losses=losses, golden=golden)
    if proof["step"] is None:
        return Message("proof.loss", losses=losses, golden=golden)
    return Message("proof.loss_at", losses=losses, golden=golden, step=proof["step"])
