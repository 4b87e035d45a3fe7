"""The result of the check of compiled code, as objects and as text for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from msprobe.messages import beside
from msprobe.pytorch.compiled.check.judge import Verdict

RANDOM, OF_SCRIPT = "random gradients", "the gradients of the script"


@dataclass(frozen=True)
class Finding:
    """A wrong node. `nodes` is the size of the smallest wrong part: 1 if the node alone is wrong."""

    node: str
    code: str
    backward: bool
    module: str
    source: str
    operators: tuple[str, ...]
    why: str
    kernels: tuple[str, ...]
    nodes: int
    reproducer: str
    verdict: Verdict

    def lines(self) -> list[str]:
        alone = "this node alone" if self.nodes == 1 else f"{self.nodes} nodes; fewer are right"
        rows = [
            ("node", f"{self.code}   ({'backward' if self.backward else 'forward'})"),
            ("source", self.source),
            ("module", self.module),
            ("operators", ", ".join(self.operators[:6])),
            ("cause", self.why),
            ("kernel", "; ".join(self.kernels[:3])),
            ("reproduce", f"python {self.reproducer}   ({alone})"),
        ]
        return [f"    {name:<10}{text}" for name, text in rows if text]

    def summary(self) -> dict[str, Any]:
        """For programs."""
        return {
            "node": self.node, "code": self.code, "backward": self.backward, "module": self.module,
            "source": self.source, "operators": list(self.operators), "sentence": self.why,
            "kernels": list(self.kernels), "nodes": self.nodes, "reproducer": self.reproducer,
            **beside({"sentence": self.why}, "sentence"),
        }  # fmt: skip


@dataclass
class RegionCheck:
    """One graph of a compiled region, at one set of input shapes."""

    name: str
    backend: str
    nodes: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    finding: Optional[Finding] = None
    runs: float = 0.0
    error: str = ""
    random: bool = False
    gradients: str = ""
    """What the backward was checked with; "" if only the forward was."""

    @property
    def wrong(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts.values() if verdict.wrong]

    def lines(self) -> list[str]:
        backward = f"; backward with {self.gradients}" if self.gradients else ""
        title = f"{self.name} ({self.backend}, {self.nodes} {'node' if self.nodes == 1 else 'nodes'}{backward})"
        if self.error and not self.wrong:
            return [f"  ?  {title}: not checked: {self.error}"]
        if not self.wrong:
            return [f"  ok {title}: {self._describe_clean()}"]
        worst = max(self.wrong, key=lambda verdict: verdict.factor)
        lines = [f"  !! {title}: {len(self.wrong)} of {len(self.verdicts)} values are wrong; {_describe(worst)}"]
        if self.error:
            lines.append(f"     its node could not be looked for: {self.error}")
        elif self.finding is None:
            lines.append("     no smaller part of the region is wrong alone: the fault needs the complete region.")
        return lines + (self.finding.lines() if self.finding is not None else [])

    def summary(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name, "backend": self.backend, "nodes": self.nodes, "gradients": self.gradients,
            "verdict": "wrong" if self.wrong else "not checked" if self.error else "right", "error": self.error,
            "values": [_summarise(one) for one in self.verdicts.values()],
            "finding": None if self.finding is None else self.finding.summary(),
        }  # fmt: skip

    def _describe_clean(self) -> str:
        if not self.verdicts:
            return "it returns no tensor"
        different = [verdict for verdict in self.verdicts.values() if not verdict.same]
        if not different:
            return "bit-identical to eager"
        nearer = [verdict for verdict in different if verdict.nearer]
        largest = max(different, key=lambda verdict: verdict.compiled_error)
        errors = f"compiled is off by {largest.compiled_error:.2g}, eager by {largest.eager_error:.2g} (of fp64)"
        if largest.nearer:
            return (
                f"{len(different)} of {len(self.verdicts)} values differ from eager, {len(nearer)} of them are nearer "
                f"to fp64; {largest.name}: {errors}. The compiled result is the better one: not a bug."
            )
        return (
            f"{len(different)} of {len(self.verdicts)} values differ from eager by rounding; {largest.name}: {errors}"
        )


def _summarise(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name, "wrong": verdict.wrong, "same": verdict.same, "nearer": verdict.nearer,
        "compiled_error": verdict.compiled_error, "eager_error": verdict.eager_error, "limit": verdict.limit,
        "reason": verdict.why, **beside({"reason": verdict.why}, "reason"),
    }  # fmt: skip


def _describe(verdict: Verdict) -> str:
    if verdict.why and verdict.limit == 0.0 and verdict.eager_error == 0.0 and verdict.compiled_error > 1:
        return f"{verdict.name}: {verdict.why}"
    return (
        f"{verdict.name} is off by {verdict.compiled_error:.2g} of fp64, eager by {verdict.eager_error:.2g}; "
        f"rounding allows {verdict.limit:.2g}"
    )


@dataclass
class CompiledCheck:
    """The result of `check_compiled`. Print it to read it; `ok` is True if nothing is wrong."""

    regions: list[RegionCheck] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(region.wrong for region in self.regions)

    @property
    def checked(self) -> bool:
        """Whether at least one graph could be checked."""
        return any(region.wrong or not region.error for region in self.regions)

    @property
    def findings(self) -> list[Finding]:
        return [region.finding for region in self.regions if region.finding is not None]

    def summary(self) -> dict[str, Any]:
        """The answer for programs."""
        return {
            "checked": self.checked, "ok": self.ok, "regions": [region.summary() for region in self.regions],
        }  # fmt: skip

    def __str__(self) -> str:
        if not self.regions:
            return "No compiled region ran: nothing was checked."
        wrong = sum(bool(region.wrong) for region in self.regions)
        unknown = sum(bool(region.error) and not region.wrong for region in self.regions)
        checked = len(self.regions) - unknown
        head = f"{checked} compiled {'graph' if checked == 1 else 'graphs'} checked: "
        parts = [f"{wrong} wrong" if wrong else "none is wrong"] if checked else []
        if unknown:
            parts.append(f"{unknown} could not be checked")
        return "\n".join([head + ", ".join(parts), *(line for region in self.regions for line in region.lines())])

    __repr__ = __str__
