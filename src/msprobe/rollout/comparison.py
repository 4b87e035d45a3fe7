"""Compares a rollout with a trainer by token: the first module that is not the trainer's, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np

from msprobe.dump.errors import DumpError
from msprobe.dump.plural import count
from msprobe.dump.reader import Dump, open_dump
from msprobe.dump.tokens import ROLLOUT, TRAINER
from msprobe.rollout.judge import Finding, find
from msprobe.rollout.logprobs import Differences, HeadRows, compare_logprobs, explain_logprobs, head_rows
from msprobe.rollout.matching import Matcher
from msprobe.rollout.reasons import explain
from msprobe.rollout.reference import Node, Reference
from msprobe.rollout.replay import Errors, Replay
from msprobe.rollout.shares import layer_shares
from msprobe.rollout.sides import Side, open_side, pair_sequences

Array = np.ndarray[Any, Any]
SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"


@dataclass
class TokenComparison:
    """The answer. `verdict` is same, differs or unknown; `findings` are in the order of computation."""

    verdict: str
    sentence: str
    findings: list[Finding] = field(default_factory=list)
    logprobs: Optional[Differences] = None
    logprob_cause: Optional[tuple[str, str]] = None
    notes: list[str] = field(default_factory=list)
    sequences: int = 0
    rows: int = 0
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return {SAME: 0, DIFFERS: 1, UNKNOWN: 2}[self.verdict]

    def summary(self) -> dict[str, Any]:
        """For programs."""
        findings = [{**asdict(one), "node": {"module": one.node.path, "value": one.node.slot}} for one in self.findings]
        worst = None if self.logprobs is None else asdict(self.logprobs.worst)
        figures = None if self.logprobs is None else {**self.logprobs.figures(), "tokens": len(self.logprobs.tokens)}
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "findings": findings,
            "logprobs": figures,
            "worst_token": worst,
            "logprob_cause": None if self.logprob_cause is None else dict(zip(("cause", "text"), self.logprob_cause)),
            "sequences": self.sequences,
            "rows": self.rows,
            "notes": self.notes,
            "shares": self.shares,
        }


def sides_of(target: Path, golden: Path) -> Optional[tuple[Dump, Dump]]:
    """The rollout and the trainer, in this order, if these two dumps are one of each; else None."""
    dumps = (open_dump(target), open_dump(golden))
    kinds = [_side(dump) for dump in dumps]
    if set(kinds) != {ROLLOUT, TRAINER}:
        return None
    return dumps if kinds[0] == ROLLOUT else (dumps[1], dumps[0])


def _side(dump: Dump) -> Optional[str]:
    for rank in dump.ranks:
        if (rank.path / "tokens.json").exists():
            tokens = rank.tokens
            return None if tokens is None else tokens.side
    return None


def compare_by_token(
    rollout: Dump, trainer: Dump, older: Optional[Mapping[str, Array]] = None, with_shares: bool = False
) -> TokenComparison:
    """Aligns both dumps by token, proves the alignment, and judges every value by local replay."""
    ours, theirs = open_side(rollout, ROLLOUT), open_side(trainer, TRAINER)
    pairs, alone = pair_sequences(ours, theirs)
    notes = _notes(ours, alone)
    if not pairs:
        sentence = "No sequence of the rollout is in the trainer's dump: collect it with `msprobe rollout trainer`."
        return TokenComparison(UNKNOWN, sentence, notes=notes)
    for side, dump in ((ours, rollout), (theirs, trainer)):
        if not side.has_files:
            raise DumpError(f'{dump.path} has no tensor files: collect it with task "tensor", level "L0".')
    reference = _reference(theirs)
    replay = Replay(ours, theirs, pairs, reference, Matcher(ours, theirs, reference))
    replay.prepare()
    broken = _embedding(replay)
    rows = sum(int((pair.rollout_rows >= 0).sum()) for pair in pairs)
    if broken is not None:
        return TokenComparison(DIFFERS, broken[0], [broken[1]], notes=notes, sequences=len(pairs), rows=rows)
    result = _judge(replay, older, notes, rows)
    if with_shares:
        result.shares = layer_shares(replay)
    return result


def _reference(trainer: Side) -> Reference:
    configuration = trainer.engine.get("config")
    if not isinstance(configuration, dict):
        raise DumpError(
            "the trainer's dump does not have the configuration of a Hugging Face model, which is needed to compute "
            "its modules again. Collect it with `msprobe rollout trainer`."
        )
    reference = Reference(configuration, dict(trainer.parameters()))
    if reference.missing:
        raise DumpError(
            f"the trainer's dump has no weights of {count(len(reference.missing), 'parameter')} "
            f"(first: {reference.missing[0]}): collect it without `scope` and `list`."
        )
    return reference


def _judge(replay: Replay, older: Optional[Mapping[str, Array]], notes: list[str], rows: int) -> TokenComparison:
    golden = replay.measure_trainer()
    found = replay.measure_rollout()
    head = _measure_head(replay, golden, found)
    findings = find(replay, golden, found)
    for one in findings:
        explain(replay, one, findings, golden, older)
    logprobs = compare_logprobs(replay.rollout, replay.trainer, replay.pairs, replay.head)
    cause = explain_logprobs(replay.rollout, head)
    unseen = [node.path for node in replay.order if node.slot == "out" and node not in found]
    if unseen:
        notes.append(f"{count(len(unseen), 'module')} not seen in the rollout (first: {unseen[0]})")
    result = TokenComparison(SAME, "", findings, logprobs, cause, notes, len(replay.pairs), rows)
    if findings:
        first = findings[0]
        result.verdict = DIFFERS
        result.sentence = f"The first module that is not the trainer's is {describe(replay, first)}: {first.reason}."
    elif cause is not None:
        result.verdict = DIFFERS
        result.sentence = f"All modules are the trainer's, but {cause[1]}."
    elif not found:
        result.verdict = UNKNOWN
        result.sentence = "No value of the rollout could be aligned with one of the trainer."
    else:
        result.sentence = (
            f"The rollout computes what the trainer computes: {count(len(found), 'value')} in {count(rows, 'row')} "
            "differ by rounding only (engine and trainer are not batch-invariant)."
        )
    return result


def _notes(rollout: Side, alone: list[str]) -> list[str]:
    notes = []
    if alone:
        notes.append(f"{count(len(alone), 'rollout sequence')} not in the trainer's dump (first: {alone[0]})")
    if rollout.absent:
        total = sum(last - first + 1 for _, first, last in rollout.absent)
        notes.append(f"{count(total, 'position')} came from the prefix cache and have no rows of their own")
    if rollout.rows.again.any():
        notes.append(f"{count(int(rollout.rows.again.sum()), 'row')} computed again after preemption")
    return notes


def _embedding(replay: Replay) -> Optional[tuple[str, Finding]]:
    """Proves the alignment: the embedding rows of the same tokens are equal bit for bit."""
    node = replay.order[0]
    mine, theirs = replay.sources.get(node), replay.golden.get(node)
    ours = None if mine is None else mine.values(replay.rollout)
    golden = None if theirs is None else theirs.values(replay.trainer)
    if ours is None or golden is None:
        return None
    wrong: dict[int, int] = {}
    checked = 0
    for pair in replay.pairs:
        known = (pair.rollout_rows >= 0) & (pair.trainer_rows >= 0)
        unequal = (ours[pair.rollout_rows[known]] != golden[pair.trainer_rows[known]]).any(1)
        checked += len(unequal)
        for token in np.array(pair.tokens)[known][unequal].tolist():
            wrong[token] = wrong.get(token, 0) + 1
    narrow = replay.rollout.dtype(mine.slots[0]) != replay.trainer.dtype(theirs.slots[0]) if mine and theirs else False
    if not wrong or narrow:
        return None
    share = sum(wrong.values()) / checked
    reason = "its weight differs" if share < 0.9 else "its weight or the tokens differ"
    finding = Finding(node, float("inf"), "all rows" if share > 0.9 else "some rows", "", "embedding", reason)
    first = next(iter(wrong))
    return (
        f"The embedding rows of {count(len(wrong), 'token')} differ (first: token {first}), so {reason} in "
        f"{node.path}; nothing after it was compared.",
        finding,
    )


def _measure_head(replay: Replay, golden: dict[Node, Errors], found: dict[Node, Errors]) -> Optional[HeadRows]:
    """The logits: engines compute them only for the rows that they sample from."""
    node = Node(replay.head, "out")
    module = replay.reference.modules[replay.head]
    weight = module._parameters.get("weight")
    if node in found or weight is None:
        return None
    before = [one for one in replay.order if one.slot == "out" and one.path != replay.head][-1]
    source = replay.sources.get(before)
    norm = None if source is None else source.values(replay.rollout)
    head = head_rows(replay.rollout, norm, int(weight.shape[0]), int(weight.shape[1]))
    if head is None:
        return None
    exact = replay.reference.call(replay.head, head.hidden, (head.hidden.shape[1],))
    errors = Errors()
    errors.add(head.rows, head.logits, exact)
    found[node] = errors
    replay.head_rows = head
    return head


def describe(replay: Replay, finding: Finding) -> str:
    """A finding as a place: the trainer's module, what it is in the rollout, and in which rows."""
    node = finding.node
    values = {
        "query": "rotated q of ",
        "key": "rotated k of ",
        "value": "v of ",
        "attended": "attention of ",
        "in": "input of ",
    }
    source = replay.sources.get(node)
    name = source.slots[0].path if source is not None else ""
    inside = f" (in the rollout: {name})" if name and name != node.path else ""
    also = f", and {len(finding.also)} more layers" if finding.also else ""
    part = f", {finding.columns}" if finding.columns else ""
    size = "" if not np.isfinite(finding.ratio) else f", {finding.ratio:.3g} times the expected rounding"
    return f"{values.get(node.slot, '')}{node.path}{inside}{also}, {finding.rows}{part}{size}"


def answer(comparison: TokenComparison) -> list[str]:
    """The lines of the answer."""
    lines = [comparison.sentence]
    for one in comparison.findings[1:6]:
        also = f" and {len(one.also)} more layers" if one.also else ""
        lines.append(f"  also: {one.node.path} ({one.node.slot}){also}: {one.reason}")
    if comparison.findings and comparison.logprob_cause is not None:
        lines.append(f"  also: {comparison.logprob_cause[1]}")
    if comparison.logprobs is not None:
        figures, worst = comparison.logprobs.figures(), comparison.logprobs.worst
        lines.append(
            f"  log-probs of {count(len(comparison.logprobs.tokens), 'token')}: mean difference {figures['mean']:.3g}, "
            f"90% {figures['p90']:.3g}, 99% {figures['p99']:.3g}, maximum {figures['max']:.3g}; "
            f"k3 KL {figures['k3_mean']:.3g}, maximum {figures['k3_max']:.3g} nats"
        )
        lines.append(
            f"  largest: sequence {worst.sequence}, position {worst.position}, token {worst.token}: "
            f"rollout {worst.rollout:.6g}, trainer {worst.trainer:.6g}"
        )
    if comparison.shares:
        largest = sorted(comparison.shares.items(), key=lambda one: -one[1])[:4]
        lines.append(f"  share in the log-prob difference: {', '.join(f'{name} {one:.0%}' for name, one in largest)}")
    aligned = f"  aligned: {count(comparison.sequences, 'sequence')}, {count(comparison.rows, 'row')}"
    lines.append("; ".join([aligned, *comparison.notes]))
    return lines
